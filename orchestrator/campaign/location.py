"""Finds a campaign: its folder, store and name, from options, a spec and configuration files."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dscampaign.jobs.shared.layout import Beside
from dscampaign.orchestrator.commands import SPEC, located, typed
from dscampaign.orchestrator.settings import Settings, resolve

if TYPE_CHECKING:
    from dscampaign.db.store import Store


StrPath = str | os.PathLike[str]


class PlaceOptions(NamedTuple):
    """The options `--dir` and `--store` of a command; None if they are not given."""

    dir: StrPath | None = None
    store: StrPath | None = None


@dataclass(frozen=True)
class Location:
    """The settings of a command, its arguments `[NAME] [RUN...]`, and the spec file, if one was named."""

    settings: Settings
    words: tuple[str, ...]
    spec: Path | None = None

    @classmethod
    def of(
        cls, place: PlaceOptions, values: Mapping[str, str | None], words: Sequence[str], spec: Path | None
    ) -> Location:
        """Resolve the settings of options and of a spec; raises UserError as `resolve` does."""
        options = {key: value and os.fspath(value) for key, value in place._asdict().items()}
        settings = resolve(options, values)
        located(settings, spec)
        return cls(settings, tuple(words), spec)

    @property
    def name(self) -> str | None:
        """The campaign, if it was named."""
        return self.words[0] if self.words else None

    def open(self, *, create: bool = False) -> Store:
        """Open the store; `create` makes a missing SQLite file. Raises StoreError."""
        from dscampaign.db.errors import SchemaMismatch, StoreMissing
        from dscampaign.db.store import Store

        try:
            return Store.open(self.settings.store, create=create)
        except StoreMissing as error:
            other = "" if self.spec else "; to find another, name its spec file, --dir or --store"
            error.hint = self.beside_spec or f"`{typed('submit', SPEC)}` creates one{other}"
            raise
        except SchemaMismatch as error:
            if error.upgradable:
                error.hint = f"`{typed('db upgrade')}`"
            raise

    @property
    def file(self) -> Path | None:
        """The store's file; None for another database than SQLite."""
        from dscampaign.db.engine import sqlite_file

        return sqlite_file(self.settings.store, Path.cwd())

    @property
    def beside_spec(self) -> str:
        """The hint for a store that exists beside the spec, and not here; else ""."""
        if self.spec is None or self.file is None or self.file.exists():
            return ""
        folder = Path(os.path.normpath(self.spec.parent / os.path.relpath(self.settings.dir)))
        exists = (folder / Beside.STORE).is_file()
        return f"there is a store beside the spec: add `--dir {shlex.quote(str(folder))}`" if exists else ""

    def open_if_any(self) -> Store | None:
        """Open the store; None if a SQLite file has yet to be made, or its maker died before it had tables."""
        if self.file and not self.file.exists():
            return None
        from dscampaign.db.errors import SchemaMismatch

        try:
            return self.open()
        except SchemaMismatch as error:
            if error.found is None and self.file:
                return None
            raise


def locate(place: PlaceOptions, words: Sequence[StrPath | None] = ()) -> Location:
    """Resolve options and arguments; a spec file as the first argument stands for its campaign, `dir` and `store`."""
    names = tuple(os.fspath(word) for word in words if word)
    spec: dict[str, str | None] = {}
    path: Path | None = None
    if names and names[0].endswith((".yaml", ".yml")) and Path(names[0]).is_file():
        from dscampaign.orchestrator.spec.yaml_source import load, read_text

        path = Path(names[0])
        data = load(read_text(path), str(path)).data  # it need not be valid: campaigns run on while it is edited
        spec = {key: value if isinstance(value := data.get(key), str) else None for key in ("name", "dir", "store")}
        names = (spec.pop("name") or names[0], *names[1:])
    return Location.of(place, spec, names, path)
