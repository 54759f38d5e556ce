"""The folder of a campaign, which carries a marker: a shared folder that is not mounted looks empty.

Without the marker, nothing is concluded from absent files, and nothing is created.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from dscampaign.db.engine import sqlite_file
from dscampaign.db.records import AttemptRow, CampaignRow
from dscampaign.files.atomic_files import load_json, read_json, write_atomically
from dscampaign.files.private_files import make_below, make_private, open_regular
from dscampaign.jobs.shared.layout import BY_HAND, MARKER, CampaignPaths, cluster_file
from dscampaign.orchestrator.commands import typed
from dscampaign.orchestrator.errors import Unreachable, UserError
from dscampaign.orchestrator.executors import storage
from dscampaign.orchestrator.executors.base import Executor

_DRAFT: Final = re.compile(rf"\.{re.escape(MARKER)}\.\d+\.[0-9a-f]{{8}}")
_STORE: Final = "store"
_NAME_BYTES: Final = 256
_ANOTHER: Final = "give the campaign another name or --dir, or move the folder away if nobody needs it"

FolderId = tuple[int, int]  # device and inode: another folder, also one mounted over it, has others


def run_folders(paths: CampaignPaths) -> set[str]:
    """Return the names of the runs that have a folder; a shared folder may show a new one only after a while."""
    try:
        return {entry.name for entry in os.scandir(paths.runs)}
    except FileNotFoundError:  # an older version made it later
        return set()


def run_folder(row: AttemptRow) -> str:
    """Return the name of the folder of an attempt's run."""
    return row.spool_path.rsplit("/", 3)[-3]


def require_free(paths: CampaignPaths, store: str = "", *, recorded: bool = False) -> None:
    """Raise UserError if a campaign's folder holds more than the files of `create`, and runs by hand.

    A folder that this very store (its URL without a password) has made and forgotten stays its own: see `recall`. So
    does a damaged marker if the campaign is `recorded`.
    """
    folder = paths.dir
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder", _ANOTHER)
    if _was_left_by(paths, store):
        return
    for place in sorted(folder.iterdir()):
        if place.name == BY_HAND or _DRAFT.fullmatch(place.name):
            continue
        empty = place in (paths.runs, paths.batches) and not place.is_symlink() and not any(place.iterdir())
        if empty or (place == paths.marker and not place.is_symlink() and (recorded or _read_marker(paths))):
            continue
        if _read_marker(paths):
            hint = f"choose another name or --dir; if its store was deleted and nobody needs it, `rm -r {folder}`"
            raise UserError(f"{folder} belongs to another campaign {paths.campaign}", hint)
        raise UserError(f"{folder} is not empty: {place.name} is not of this campaign", _ANOTHER)


def _was_left_by(paths: CampaignPaths, store: str) -> bool:
    return bool(store) and (_read_marker(paths) or {}).get(_STORE) == store


def _read_marker(paths: CampaignPaths) -> dict[str, Any] | None:
    """Return the content of the marker; None if it is absent, damaged, or not written by this program."""
    with suppress(ValueError):
        marker = load_json(paths.marker) or {}
        return marker if {"campaign", "created_s"} <= marker.keys() else None
    return None


def _is_copy(own: Path, first: Path) -> bool:
    """Return whether both files exist, under names of their own: links to a file and mounts of it are no copies."""
    if own.resolve() == first.resolve() or not (os.path.exists(own) and os.path.exists(first)):  # noqa: PTH110
        return False
    return not own.samefile(first) or own.stat().st_nlink > 1


class CampaignFolder:
    """The folder of a campaign that is recorded in the store."""

    def __init__(self, campaign: CampaignRow) -> None:
        self.paths = CampaignPaths(Path(campaign.dir), campaign.name)
        # Both are in the store from the first day and never change.
        self._marker: dict[str, Any] = {"campaign": campaign.name, "created_s": campaign.created_s}

    @property
    def was_removed(self) -> bool:
        """Whether it is gone, perhaps removed by its user: the folder above it holds other files, so it is mounted."""
        folder = self.paths.dir
        return not folder.exists() and folder.parent.is_dir() and any(folder.parent.iterdir())

    def create(self, store: str = "", *, recorded: bool = False) -> None:
        """Make the folder of a campaign that is being recorded, as `require_free` allows; raises Unreachable."""
        try:
            require_free(self.paths, store, recorded=recorded)
            make_private(self.paths.dir)
            self._make_folders()
            self._mark(**((_read_marker(self.paths) or {}) if _was_left_by(self.paths, store) else {_STORE: store}))
        except OSError as exc:
            raise storage.unwritable(exc) from exc

    def require(self, store: str = "") -> FolderId:
        """Return the id of the folder, and write nothing; raises Unreachable if it is away or another campaign's.

        Also if ``store`` is a copy of the file that made the folder: only one of them may act for the runs.
        """
        try:
            info = self.paths.dir.stat()
            if not self._is_marked():
                raise self._away()
        except FileNotFoundError as exc:
            raise self._away() from exc
        except OSError as exc:
            message = f"the shared folder cannot be read: {exc}"
            raise Unreachable(message, "the next pass tries again", about="not readable") from exc
        named = str((read_json(self.paths.marker) or {}).get(_STORE, ""))
        first, own = (sqlite_file(url, self.paths.root) for url in (named, store))
        if first and own and _is_copy(own, first):
            message = f"{own} is a copy: {first} has the campaign {self.paths.campaign} in {self.paths.dir}"
            raise Unreachable(message, f"work with `--store {named}`; if it is given up, move that file away")
        return info.st_dev, info.st_ino

    def complete(self) -> None:
        """Add missing parts of a folder that is here."""
        self._make_folders()
        if not self._is_marked():
            self._mark()

    def require_or_begin_anew(self) -> None:
        """As `require`, for a campaign that its user submits again.

        An empty folder of its name becomes its own, and a damaged marker beside its batches is written anew.
        """
        if self.paths.dir.is_dir() and not _read_marker(self.paths):
            if os.path.lexists(self.paths.marker) and self.paths.batches.is_dir():
                self._mark()
            else:
                self.create(recorded=True)
        self.require()

    def _is_marked(self) -> bool:
        marker = _read_marker(self.paths)
        return marker is not None and marker.items() >= self._marker.items()

    def _make_folders(self) -> None:
        for folder in (self.paths.runs, self.paths.batches):
            make_below(self.paths.dir, folder)

    def _mark(self, **more: Any) -> None:
        write_atomically(self.paths.marker, json.dumps({**more, **self._marker}))

    def _away(self) -> Unreachable:
        name, folder, marker = self._marker["campaign"], self.paths.dir, self.paths.marker
        if _read_marker(self.paths):
            return Unreachable(f"{folder} belongs to another campaign {name}", "choose another name or --dir")
        if os.path.lexists(marker):
            return Unreachable(f"{marker} is damaged", "submit the spec again: that writes it again")
        hint = f"is {self.paths.root} mounted here? If it was moved, leave a link in its place. "
        hint += f"If it is lost for good, `mkdir -p {shlex.quote(str(folder))}` and submit to start over"
        if self.was_removed:
            hint += f", or `{typed('rm', name)}` to give it up"
        return Unreachable(f"{folder} is not the folder of campaign {name}: it is missing or empty", hint)


def require_same_cluster(tokens: Iterable[str], paths: CampaignPaths, executor: Executor) -> None:
    """Raise Unreachable if arrays with missing jobs were submitted to another cluster than this host's.

    A host with the slurm.conf of another cluster sees the same folder and store, and none of their jobs.
    """
    for token in tokens:
        file = cluster_file(paths.batch(token))
        theirs = ""
        with suppress(FileNotFoundError), open_regular(file) as record:
            theirs = (record.read(_NAME_BYTES) or b"").decode(errors="replace").strip()
        if theirs and theirs.casefold() != (own := executor.cluster()).casefold():
            if not own:
                raise Unreachable("scontrol does not name this cluster", "the next pass tries again")
            raise Unreachable(
                f"jobs of this campaign are on cluster {theirs}, and this host uses cluster {own}",
                f"work on a host of {theirs}, or with its SLURM_CONF; if that cluster is no more, "
                f"`rm {paths.batches}/*/{file.name}` gives its jobs up",
            )
