"""What on this host is open to others: who could change what runs as this user, and who could read a password."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from dscampaign.files.ownership import Distrusted, distrust, planted
from dscampaign.orchestrator.formatting import some
from dscampaign.orchestrator.settings import Settings

from .check import At, Check
from .requirements import Requirements

_LISTED: Final = 3
_BELOW: Final = ("*", "*/batches", "*/runs", "*/runs/*", "*/runs/*/checkpoints")
"""In a campaign's folder, what a job reads or writes; its attempts look at the rest themselves."""


def access_checks(here: str, settings: Settings, requirements: Sequence[Requirements]) -> Iterator[Check]:
    """Verdicts on who else could change or read what a campaign on this host relies on."""
    at = At(here)
    yield from _folders(At("shared folder"), settings.dir)
    yield from _code(at, requirements)
    if not settings.store.startswith("sqlite"):
        yield from password_checks(At("store"), settings, os.environ)


def _folders(at: At, folder: Path) -> Iterator[Check]:
    """What lies in the folder; of the folder itself `folder.private` speaks."""
    found = [doubt for pattern in _BELOW for path in sorted(folder.glob(pattern)) if (doubt := planted(path))]
    if found:
        seen = some([doubt.why for doubt in found], _LISTED)
        yield at.problem("folder.open", seen, f"{found[0].hint}; no job runs from there")


def _code(at: At, requirements: Iterable[Requirements]) -> Iterator[Check]:
    """The interpreters and scripts that run as this user. Whose they are is for the user to judge: a note."""
    doubts: dict[str, Distrusted] = {}
    for path in dict.fromkeys(place for required in requirements for place in _runs(required)):
        with suppress(OSError):
            if doubt := distrust(path):
                doubts.setdefault(doubt.why, doubt)
    if open_ones := [doubt for doubt in doubts.values() if doubt.owner is None]:
        seen = f"what runs as you can be changed: {some([doubt.why for doubt in open_ones], _LISTED)}"
        yield at.warning("host.code", seen, open_ones[0].hint)
    if foreign := [doubt for doubt in doubts.values() if doubt.owner is not None]:
        seen = f"what runs as you is somebody else's: {some([doubt.why for doubt in foreign], _LISTED)}"
        yield at.note("host.code", seen, "fine if you trust them as you trust yourself")
    if not doubts:
        yield at.ok("host.code", "nobody else can change the Python and the files that run")


def _runs(required: Requirements) -> Iterator[Path]:
    python = shutil.which(required.config.python or sys.executable)
    if python:
        yield Path(python)
        yield Path(python).parent.parent / "lib"
    yield from map(Path, required.files)


def password_checks(at: At, settings: Settings, environ: Mapping[str, str]) -> Iterator[Check]:
    """Verdicts on where the password of a PostgreSQL store lies."""
    [origin] = [setting for setting in settings.origins if setting.name == "store"]
    if settings.store != settings.store_without_password:
        seen = f"the address has a password or another secret, from {origin.source}"
        hint = "put it into ~/.pgpass, mode 0600: jobs and `ps` then see nothing of it"
        yield at.warning("store.password", seen, hint)
    path = Path(environ.get("PGPASSFILE") or Path("~/.pgpass").expanduser())
    with suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            yield at.warning("store.pgpass", f"{path} has mode {mode:04o}: libpq ignores it", f"`chmod 600 {path}`")
