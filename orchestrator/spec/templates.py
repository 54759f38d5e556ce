"""Specs to start from, which `campaign init` copies; some can also be had at a scale for a laptop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from dscampaign.orchestrator.errors import UserError, did_you_mean

FULL: Final = "full"
SMOKE: Final = "smoke"
TEXT: Final = "wikitext.txt"
"""Training data of the scale `smoke`, beside the spec."""

_FOLDER: Final = files("dscampaign.templates")


@dataclass(frozen=True)
class Template:
    """A campaign to start from, with the file of each scale that it has: always one with `full`."""

    name: str
    specs: Mapping[str, Traversable]

    @property
    def summary(self) -> str:
        """Its purpose: the first line of its spec."""
        return self.specs[FULL].read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def templates() -> list[Template]:
    """Return all templates, by name."""
    by_name: dict[str, dict[str, Traversable]] = {}
    for item in _FOLDER.iterdir():
        if item.name.endswith(".yaml"):
            name, _, scale = item.name.removesuffix(".yaml").partition(".")
            by_name.setdefault(name, {})[scale or FULL] = item
    return [Template(name, by_name[name]) for name in sorted(by_name)]


def find(name: str) -> Template:
    """Return the template of a name, or raise a UserError."""
    by_name = {template.name: template for template in templates()}
    if name not in by_name:
        hint = f"{did_you_mean(name, by_name, '')} one of: {', '.join(by_name)}".lstrip()
        hint = f"`campaign init --from-sbatch {name}` reads a batch script" if Path(name).is_file() else hint
        raise UserError(f"no template named {name}", hint)
    return by_name[name]


def write(template: Template, scale: str, path: Path) -> list[Path]:
    """Write a template's spec, and the text that the scale `smoke` trains on; return the files that are new."""
    if scale not in template.specs:
        others = [other.name for other in templates() if scale in other.specs]
        raise UserError(f"template {template.name} has no scale {scale}", f"these have: {', '.join(others)}")
    texts, beside = {path: template.specs[scale].read_text(encoding="utf-8")}, path.with_name(TEXT)
    if scale == SMOKE and not beside.exists():
        texts[beside] = (_FOLDER / TEXT).read_text(encoding="utf-8")
    write_new(texts)
    return list(texts)


def write_new(texts: Mapping[Path, str]) -> None:
    """Write files that do not exist, or raise a UserError."""
    for file, text in texts.items():
        try:
            with file.open("x", encoding="utf-8") as new:
                new.write(text)
        except OSError as error:
            exists = isinstance(error, FileExistsError)
            message = f"{file} already exists" if exists else f"cannot write {file}: {error.strerror}"
            raise UserError(message, "name another file: `campaign init other.yaml`") from error
