"""Finds a campaign: its folder, store and name, from options, a spec and configuration files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..settings import Settings, resolve

if TYPE_CHECKING:
    from ...db.store import Store


@dataclass(frozen=True)
class Location:
    """The settings of a command, and its arguments `[NAME] [RUN...]`."""

    settings: Settings
    words: tuple[str, ...]

    @property
    def name(self) -> str | None:
        """The campaign, if it was named."""
        return self.words[0] if self.words else None

    def open(self, *, create: bool = False) -> Store:
        """Opens the store; `create` makes a missing SQLite file.

        Raises StoreError if it does not exist, does not respond, or belongs to another version.
        """
        from ...db.store import Store

        return Store.open(self.settings.store, create=create)

    def open_if_any(self) -> Store | None:
        """Opens the store; None where a SQLite file has yet to be made."""
        from ...db.errors import StoreMissing

        try:
            return self.open()
        except StoreMissing:
            return None


def locate(dir: str | None, store: str | None, words: Sequence[str | None] = ()) -> Location:
    """Resolves options and arguments; a spec file as the first argument stands for its campaign, `dir` and `store`.

    Raises UserError if the spec or a configuration file cannot be read.
    """
    given = tuple(word for word in words if word)
    spec: dict[str, str | None] = {}
    if given and given[0].endswith((".yaml", ".yml")) and Path(given[0]).is_file():
        spec = _peek(Path(given[0]))
        given = (spec.pop("name") or given[0], *given[1:])
    return Location(resolve({"dir": dir, "store": store}, spec), given)


def _peek(path: Path) -> dict[str, str | None]:
    """Name, dir and store of a spec, which need not be valid: a campaign runs on while its spec is being edited."""
    from ..spec.yaml_source import load

    data = load(path.read_text(encoding="utf-8"), str(path)).data
    return {key: value if isinstance(value := data.get(key), str) else None for key in ("name", "dir", "store")}
