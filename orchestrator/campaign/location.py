"""Finds a campaign: its folder, store and name, from options, a spec and configuration files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...jobs.shared.layout import Beside
from ..settings import Settings, resolve

if TYPE_CHECKING:
    from ...db.store import Store

_PLACES: Final = ("dir", "store")


@dataclass(frozen=True)
class Location:
    """The settings of a command, its arguments `[NAME] [RUN...]`, and the spec file, if one was named."""

    settings: Settings
    words: tuple[str, ...]
    spec: Path | None = None

    @property
    def name(self) -> str | None:
        """The campaign, if it was named."""
        return self.words[0] if self.words else None

    def open(self, *, create: bool = False) -> Store:
        """Opens the store; `create` makes a missing SQLite file.

        Raises StoreError if it does not exist, does not respond, or belongs to another version.
        """
        from ...db.errors import StoreMissing
        from ...db.store import Store

        try:
            return Store.open(self.settings.store, create=create)
        except StoreMissing as error:
            error.hint = self.beside_spec or self._elsewhere or error.hint
            raise

    @property
    def beside_spec(self) -> str:
        """How to use the store in the spec's folder, where none is in this one and no setting names any; else ""."""
        if self.spec is None or not self._by_default or (self.settings.dir / Beside.STORE).exists():
            return ""
        dir = self.spec.parent / self.settings.dir.name
        found = (dir / Beside.STORE).is_file()
        return f"there is one beside the spec: add `--dir {shlex.quote(str(dir))}`" if found else ""

    @property
    def _elsewhere(self) -> str:
        """How to name a store that may be elsewhere, where neither a spec nor a setting named any; else ""."""
        if self.spec is not None or not self._by_default:
            return ""
        return "`campaign submit SPEC` creates one; if yours is elsewhere, name its spec file, or give --dir or --store"

    @property
    def _by_default(self) -> bool:
        return all(one.source.startswith("default") for one in self.settings.origins if one.name in _PLACES)

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
    path: Path | None = None
    if given and given[0].endswith((".yaml", ".yml")) and Path(given[0]).is_file():
        path = Path(given[0])
        spec = _peek(path)
        given = (spec.pop("name") or given[0], *given[1:])
    return Location(resolve({"dir": dir, "store": store}, spec), given, path)


def _peek(path: Path) -> dict[str, str | None]:
    """Name, dir and store of a spec, which need not be valid: a campaign runs on while its spec is being edited."""
    from ..spec.yaml_source import load

    data = load(path.read_text(encoding="utf-8"), str(path)).data
    return {key: value if isinstance(value := data.get(key), str) else None for key in ("name", "dir", "store")}
