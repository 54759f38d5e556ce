"""Finds a campaign: its folder, store and name, from options, a spec and configuration files."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from dscampaign.jobs.shared.layout import Beside
from dscampaign.orchestrator.commands import SPEC, located, typed
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.settings import Settings, resolve

if TYPE_CHECKING:
    from dscampaign.db.store import Store

_TYPED: Final = ("command line", "environment")
"""Prefixes of the sources of settings that do not depend on the folder of the call."""


class PlaceOptions(NamedTuple):
    """The options `--dir` and `--store` of a command; None if they are not given."""

    dir: str | None = None
    store: str | None = None


@dataclass(frozen=True)
class Location:
    """The settings of a command, its arguments `[NAME] [RUN...]`, and the spec file, if one was named.

    `there` are the settings that the command would have in the spec's folder.
    """

    settings: Settings
    words: tuple[str, ...]
    spec: Path | None = None
    there: Settings | None = None

    @classmethod
    def of(
        cls, place: PlaceOptions, given: Mapping[str, str | None], words: Sequence[str], spec: Path | None
    ) -> Location:
        """Resolve the settings of options and of a spec; raises UserError as `resolve` does."""
        here, there = resolve(place._asdict(), given), None
        if spec is not None:
            options = {"dir": str(here.dir) if place.dir else None, "store": place.store}
            with suppress(UserError):
                there = resolve(options, given, cwd=spec.parent.absolute())
        located(here, spec)
        return cls(here, tuple(words), spec, there)

    @property
    def name(self) -> str | None:
        """The campaign, if it was named."""
        return self.words[0] if self.words else None

    def open(self, *, create: bool = False) -> Store:
        """Open the store; `create` makes a missing SQLite file.

        Raises StoreError if it does not exist, does not respond, or belongs to another version.
        """
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
        return _file(self.settings.store, Path.cwd())

    @property
    def beside_spec(self) -> str:
        """The hint for a store that exists beside the spec, and not here; else ""."""
        if self.spec is None or self.there is None or self._source_of("store").startswith(_TYPED):
            return ""
        here, there = self.file, _file(self.there.store, self.spec.parent.absolute())
        if here is None or here.exists() or there is None or not there.is_file():
            return ""
        words = [] if self.there.dir == self.settings.dir else ["--dir", _spelt(self.there.dir, self.spec.parent)]
        if there != self.there.dir / Beside.STORE:
            words += ["--store", f"sqlite:///{_spelt(there, self.spec.parent)}"]
        return f"there is a store beside the spec: add `{shlex.join(words)}`"

    def _source_of(self, name: str) -> str:
        return next((one.source for one in self.settings.origins if one.name == name), "default")

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


def locate(place: PlaceOptions, words: Sequence[str | None] = ()) -> Location:
    """Resolve options and arguments; a spec file as the first argument stands for its campaign, `dir` and `store`.

    Raises UserError if the spec or a configuration file cannot be read.
    """
    given = tuple(word for word in words if word)
    spec: dict[str, str | None] = {}
    path: Path | None = None
    if given and given[0].endswith((".yaml", ".yml")) and Path(given[0]).is_file():
        path = Path(given[0])
        spec = _peek(path)
        given = (spec.pop("name") or given[0], *given[1:])
    return Location.of(place, spec, given, path)


def _file(store: str, folder: Path) -> Path | None:
    from dscampaign.db.engine import sqlite_file

    return sqlite_file(store, folder)


def _spelt(place: Path, spec_folder: Path) -> str:
    return os.path.normpath(spec_folder / os.path.relpath(place, spec_folder))


def _peek(path: Path) -> dict[str, str | None]:
    """Return name, dir and store of a spec that need not be valid: campaigns run on while their specs are edited."""
    from dscampaign.orchestrator.spec.yaml_source import load

    data = load(path.read_text(encoding="utf-8"), str(path)).data
    return {key: value if isinstance(value := data.get(key), str) else None for key in ("name", "dir", "store")}
