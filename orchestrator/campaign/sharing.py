"""Lets a group read a campaign, and takes it back: its runs' folders and the store, not its jobs and checkpoints.

What is opened follows from what `status`, `explain`, `report`, `recommend`, `compare` and `logs` read. What running
attempts make later follows by itself: see `files/private_files.py`.
"""

from __future__ import annotations

import grp
import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dscampaign.db import queries
from dscampaign.db.read_only import LOGS, beside
from dscampaign.db.records import CampaignRow
from dscampaign.db.store import Store
from dscampaign.files.access_lists import Tag, access_list, drop_lists
from dscampaign.files.atomic_files import load_json, write_atomically
from dscampaign.files.ours import Part, PartOf, Place, walk
from dscampaign.files.ownership import distrust, distrust_tree, group_name, user_name
from dscampaign.files.private_files import close_file, open_file
from dscampaign.jobs.shared.layout import BY_HAND, MARKER, AttemptPaths, Beside, CampaignPaths
from dscampaign.jobs.shared.sharing import Sharing
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.formatting import count, some
from dscampaign.orchestrator.reconcile.campaign_folder import CampaignFolder

from .parts import CampaignParts

_CHECKPOINTS: Final = "checkpoints"
_FORWARD: Final = "forward"
_IN_RUN: Final = len(("runs", "a run", _CHECKPOINTS))
_SECRET: Final = AttemptPaths(Path()).forward_payload.name
_PASSED: Final = "passed"
"""In the marker: the folders above that a group was let through, each with the mode and the group that it had."""


@dataclass(frozen=True)
class SharedPlace:
    """A file or folder with what is to be said of it: what it holds, or why nobody gets past it."""

    path: Path
    what: str


@dataclass(frozen=True)
class SharedCampaign:
    """What a group may read of a campaign now.

    Attributes:
        sharing: who; None if nobody may any more.
        readable: what that group may read.
        blocked: what keeps it out all the same.
        shared_with: names of campaigns for whose sake the store and its folder stay open.
    """

    campaign: str
    dir: Path
    sharing: Sharing | None
    readable: tuple[SharedPlace, ...] = ()
    blocked: tuple[SharedPlace, ...] = ()
    shared_with: tuple[str, ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        """The same for `--json`."""
        return {
            "campaign": self.campaign,
            "dir": str(self.dir),
            "group": self.sharing.group if self.sharing else None,
            "checkpoints": bool(self.sharing and self.sharing.checkpoints),
            "readable": [{"path": str(place.path), "what": place.what} for place in self.readable],
            "blocked": [{"path": str(place.path), "why": place.what} for place in self.blocked],
        }


def share(store: Store, campaign: CampaignRow, group: str | None, *, checkpoints: bool) -> SharedCampaign:
    """Open a campaign for a group to read, again if it was opened before.

    Args:
        store: The store of the campaign.
        campaign: What to open.
        group: A name or a number; None for the one that it is shared with, else for the user's own.
        checkpoints: Whether to open checkpoints as well.

    Raises:
        UserError: The user has no such group, does not own the campaign's folder, or has other files beside it.
        Unreachable: Its folder is away.
        OSError: Something cannot be opened.
    """
    paths = _own_folder(campaign)
    before = Sharing.read(paths.marker)
    name, gid = _group(group or (before.group if before else None))
    parts = _parts(store, campaign)
    files = _store_files(store)
    above = {paths.root, *(file.parent for file in files)}
    to_pass = [folder for folder in sorted(above) if not _may(folder, gid, 1) and _is_closed(folder, gid)]
    _require_alone(paths, parts, to_pass, files)
    _record(paths, Sharing(name, checkpoints), to_pass)
    _open_runs(paths, parts, gid, checkpoints=checkpoints)
    _give(paths.marker, gid)
    open_file(paths.marker)
    drop_lists(paths.dir)
    paths.dir.chmod(0o700)
    _let_pass(paths.dir, gid)  # last: what was open to too many by accident has been closed by now
    readable, blocked = _open_store(store, files, gid, name)
    for folder in to_pass:
        _let_pass(folder, gid)
    what = "logs, metrics, configurations" + (" and checkpoints" if checkpoints else "")
    mine = SharedPlace(paths.runs, f"{what} of {count(len(parts.runs), 'run')}, and of attempts to come")
    ways = {*paths.dir.parents, *(way for place in readable for way in place.path.parents)}
    blocked += [SharedPlace(way, _remedy(way, gid, name)) for way in sorted(ways) if not _may(way, gid, 1)]
    return SharedCampaign(campaign.name, paths.root, Sharing(name, checkpoints), (mine, *readable), tuple(blocked))


def unshare(store: Store, campaign: CampaignRow) -> SharedCampaign:
    """Close a campaign again; the store too, unless another campaign of its folder is shared. Raises as `share`."""
    paths = _own_folder(campaign)
    paths.dir.chmod(0o700)  # from here on nobody reaches what is below
    was, passed = Sharing.read(paths.marker), _passed(paths)
    for place, descriptor in _opened(paths, _parts(store, campaign)):
        drop_lists(descriptor)
        os.fchmod(descriptor, place.info.st_mode & 0o700)
    others = _shared_besides(paths)
    if was and not others:
        for file in _store_files(store):
            if _is_mine(file):
                close_file(file)
        for name, (mode, gid) in passed.items():
            if stat.S_IMODE(Path(name).stat().st_mode) == mode | stat.S_IXGRP:  # as it was left
                os.chown(name, -1, gid)
                Path(name).chmod(mode)
    _record(paths, None)
    return SharedCampaign(campaign.name, paths.root, None, shared_with=others)


def _parts(store: Store, campaign: CampaignRow) -> CampaignParts:
    with store.read() as conn:
        return CampaignParts.of(queries.runs(conn, campaign.id), queries.attempts(conn, campaign.id))


def _require_alone(paths: CampaignPaths, parts: CampaignParts, to_open: Sequence[Path], files: Sequence[Path]) -> None:
    """Make sure that only files of this program come to lie behind a folder that a group is let through.

    What scripts have written into the folders of their runs may be read with these, if nobody else may write it.

    Raises:
        UserError: others lie there: the group could read them, and what replaces them.
    """
    theirs = [place for folder in to_open for place in sorted(folder.iterdir()) if not _is_known(place, files)]
    for place in walk(paths.dir, parts):
        if place.part is None and not place.path.is_relative_to(paths.runs):
            theirs += [] if _is_private(place.path) else [place.path]
        elif place.part is None and not stat.S_ISLNK(place.info.st_mode):
            tree = distrust_tree if stat.S_ISDIR(place.info.st_mode) else distrust
            if doubt := tree(place.path, paths.root):
                raise UserError(str(doubt), doubt.hint)
    if theirs:
        raise UserError(
            f"a group that may read the campaign could read what lies beside it: {some(list(map(str, theirs)), 4)}",
            "share a campaign in a `dir` that holds nothing else, and move other files out of its folder",
        )


def _is_known(place: Path, files: Sequence[Path]) -> bool:
    """Whether a place in a `dir` or beside a store is of this program, and stays closed or is opened with it."""
    if place.is_symlink():
        return False
    stores = {beside(file, end) for file in files[:1] for end in ("", *LOGS, "-writer")}
    return place in stores or place.name == Beside.SETTINGS or (place / MARKER).is_file() or _is_private(place)


def _is_private(place: Path) -> bool:
    """Whether a folder of this program's is closed to all but its owner: runs by hand, data, code."""
    info = place.lstat()
    return place.name in (BY_HAND, Beside.DATA, Beside.CODE) and stat.S_ISDIR(info.st_mode) and not info.st_mode & 0o077


def _is_closed(folder: Path, gid: int) -> bool:
    """Whether a folder is the user's own, and no other group has any right to it that would have to change."""
    found = folder.stat()
    return _is_mine(folder) and not access_list(folder) and (not found.st_mode & stat.S_IRWXG or found.st_gid == gid)


def _let_pass(folder: Path, gid: int) -> None:
    _give(folder, gid)
    folder.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_IXGRP)


def _groups_of_user() -> list[str]:
    """Names of the groups that the user may share with: his own, but not one that only he is in."""
    names = {group_name(gid) for gid in (os.getegid(), *os.getgroups())}
    return sorted(names - {user_name(os.geteuid())})


def _own_folder(campaign: CampaignRow) -> CampaignPaths:
    folder = CampaignFolder(campaign)
    folder.require()
    if folder.paths.dir.is_symlink():
        raise UserError(f"{folder.paths.dir} is a symbolic link", "only a folder that campaign made can be shared")
    if not _is_mine(folder.paths.dir):
        owner = user_name(folder.paths.dir.stat().st_uid)
        raise UserError(f"{folder.paths.dir} is not yours", f"ask {owner} to share it")
    return folder.paths


def _group(name: str | None) -> tuple[str, int]:
    mine = _groups_of_user()
    hint = f"your groups: {some(mine, 8)}" if mine else "you are in no group with others: ask for one"
    if name is None:
        own = group_name(os.getegid())
        if own not in mine:
            raise UserError("which group? Yours is of you alone", f"add --group NAME; {hint}")
        name = own
    try:
        gid = int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise UserError(f"no group named {name}", hint) from None
    if os.geteuid() and gid not in (os.getegid(), *os.getgroups()):
        raise UserError(f"you are not in group {name}, so you cannot share with it", hint)
    return group_name(gid), gid


def _record(paths: CampaignPaths, sharing: Sharing | None, to_pass: Sequence[Path] = ()) -> None:
    marker = {**(load_json(paths.marker) or {})}
    known = marker.pop(_PASSED, {})
    if sharing:
        now = {str(folder): (stat.S_IMODE((info := folder.stat()).st_mode), info.st_gid) for folder in to_pass}
        marker[_PASSED] = known | now
    write_atomically(paths.marker, json.dumps(Sharing.recorded(marker, sharing)), closed=True)


def _passed(paths: CampaignPaths) -> dict[str, tuple[int, int]]:
    """The folders above that the campaigns of this `dir` are reached through, as they were before."""
    markers = [load_json(marker) or {} for marker in paths.root.glob(f"*/{MARKER}")]
    return {name: tuple(was) for marker in markers for name, was in marker.get(_PASSED, {}).items()}


def _shared_besides(paths: CampaignPaths) -> tuple[str, ...]:
    markers = (marker for marker in paths.root.glob(f"*/{MARKER}") if marker != paths.marker)
    return tuple(sorted(marker.parent.name for marker in markers if Sharing.read(marker)))


def _open_runs(paths: CampaignPaths, parts: CampaignParts, gid: int, *, checkpoints: bool) -> None:
    """Open the folders of the runs first, since what is made in an open one is open, and then their files."""
    closed = {_FORWARD} if checkpoints else {_FORWARD, _CHECKPOINTS}

    def opened(names: tuple[str, ...]) -> Part | None:
        is_open = names[0] == paths.runs.name and not closed & {*names[2:3]} and names[-1] != _SECRET
        return parts(names) if is_open else None

    def kept_closed(names: tuple[str, ...]) -> Part | None:
        return Part.FOLDER if len(names) <= _IN_RUN and parts(names) and names[0] == paths.runs.name else None

    for folders in (True, False):
        for place, descriptor in _opened(paths, opened):
            if stat.S_ISDIR(place.info.st_mode) != folders:
                continue
            os.fchown(descriptor, -1, gid)
            if folders:
                drop_lists(descriptor)
                os.fchmod(descriptor, place.info.st_mode & 0o700 | 0o050 | stat.S_ISGID)
            else:
                open_file(descriptor)
    for place, descriptor in _opened(paths, kept_closed):
        if place.path.name in closed:  # it may be open from an earlier time
            os.fchmod(descriptor, 0o700)


def _opened(paths: CampaignPaths, part_of: PartOf) -> Iterator[tuple[Place, int]]:
    for place in walk(paths.dir, part_of):
        is_folder, is_file = stat.S_ISDIR(place.info.st_mode), stat.S_ISREG(place.info.st_mode)
        if place.part and place.info.st_uid == os.geteuid() and (is_folder or (is_file and place.info.st_nlink == 1)):
            with suppress(FileNotFoundError):  # jobs replace and remove files all the time
                descriptor = os.open(place.path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place.folder)
                try:
                    yield place, descriptor
                finally:
                    os.close(descriptor)


def _give(path: Path, gid: int) -> None:
    if path.stat().st_gid != gid:
        os.chown(path, -1, gid)


def _open_store(
    store: Store, files: Sequence[Path], gid: int, group: str
) -> tuple[list[SharedPlace], list[SharedPlace]]:
    """Opens a SQLite store; returns it, and what keeps the group from reading it."""
    if not files:
        return [], [SharedPlace(Path(), f"the store is PostgreSQL: its owner grants {group} a role that may read")]
    blocked = []
    for file in files:
        found = file.stat()
        if _is_mine(file) and (found.st_gid == gid or not found.st_mode & stat.S_IRWXG):
            _give(file, gid)
            open_file(file)
        elif not _may(file, gid, 4):
            blocked.append(SharedPlace(file, f"it is open to group {group_name(found.st_gid)}, not to {group}"))
    with store.read() as conn:
        names = [row.name for row in queries.list_campaigns(conn)]
    return [SharedPlace(files[0], f"the store, with all of {some(names, 5)}")], blocked


def _store_files(store: Store) -> list[Path]:
    """The SQLite file and those beside it that are there; nothing for another store."""
    if not store.is_sqlite:
        return []
    file = Path(store.url_without_password.removeprefix("sqlite:///"))
    return [file, *(log for end in LOGS if (log := beside(file, end)).exists())]


def _may(place: Path, gid: int, right: int) -> bool:
    """Whether members of a group have a right (4 to read, 1 to pass), as far as the group decides it."""
    found = place.stat()
    mode = stat.S_IMODE(found.st_mode)
    listed = access_list(place)
    if not listed:
        return bool((mode >> 3 if found.st_gid == gid else mode) & right)
    mask = next((entry.rights for entry in listed if entry.tag == Tag.MASK), 7)
    given = [entry.rights & mask for entry in listed if entry.tag == Tag.GROUP and entry.number == gid]
    given += [entry.rights & mask for entry in listed if entry.tag == Tag.OWNING_GROUP and found.st_gid == gid]
    given = given or [entry.rights for entry in listed if entry.tag == Tag.OTHER]
    return any(rights & right for rights in given)


def _remedy(folder: Path, gid: int, group: str) -> str:
    found = folder.stat()
    if not _is_mine(folder):
        return f"only {user_name(found.st_uid)} can let group {group} pass"
    return f"chmod g+x {folder}" if found.st_gid == gid else f"setfacl -m g:{group}:x {folder}"


def _is_mine(path: Path) -> bool:
    return path.lstat().st_uid == os.geteuid() and not path.is_symlink()
