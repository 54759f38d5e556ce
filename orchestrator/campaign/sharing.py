"""Lets a group read a campaign, and takes it back: its runs' folders and the store, not its jobs and checkpoints.

The commands that show results decide which files are opened. Attempts open later files: see `files/private_files.py`.
"""

from __future__ import annotations

import grp
import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from dscampaign.db import queries
from dscampaign.db.read_only import LOGS, beside
from dscampaign.db.records import CampaignRow
from dscampaign.db.store import Store
from dscampaign.files.atomic_files import load_json, write_atomically
from dscampaign.files.ours import Part, PartOf, Place, walk
from dscampaign.files.ownership import group_name, user_name
from dscampaign.files.private_files import close_file, drop_lists, has_access_list, open_file
from dscampaign.jobs.shared.layout import BY_HAND, MARKER, RECONCILER, AttemptPaths, Beside, CampaignPaths
from dscampaign.jobs.shared.sharing import Sharing
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.formatting import count, some
from dscampaign.orchestrator.reconcile.campaign_folder import CampaignFolder

from .retention import CampaignParts

_CHECKPOINTS: Final = "checkpoints"
_FORWARD: Final = "forward"
_IN_RUN: Final = len(("runs", "a run", _CHECKPOINTS))
_SECRET: Final = AttemptPaths(Path()).forward_payload.name

Places = dict[Path, str]
"""Files and folders, each with its content or with the reason why it keeps the group out."""


class Shared(NamedTuple):
    """A group that may read a campaign now."""

    group: str
    readable: Places
    blocked: Places  # the places that keep it out all the same


def share(store: Store, campaign: CampaignRow, group: str | None, *, checkpoints: bool) -> Shared:
    """Open a campaign for a group to read, by default the group that it is shared with, else the user's own.

    Raises UserError if the user is not in the group, does not own the campaign's folder, or has other files beside it.
    """
    paths = _own_folder(store, campaign)
    before = Sharing.read(paths.marker)
    name, gid = _group(group or (before.group if before else None))
    parts = _parts(store, campaign, paths)
    files = _store_files(store)
    above = {paths.root, *(file.parent for file in files)}
    to_pass = [folder for folder in sorted(above) if not _may(folder, gid, 1) and _is_private(folder, gid)]
    if theirs := _beside_them(paths.dir, to_pass, files):
        message = f"a group that may read the campaign could read other files there: {some(theirs, 4)}"
        raise UserError(message, "share a campaign in a `dir` that holds nothing else")
    _record(paths, Sharing(name, checkpoints))
    _open_runs(paths, parts, gid, checkpoints=checkpoints)
    os.chown(paths.marker, -1, gid)
    open_file(paths.marker)
    drop_lists(paths.dir)
    paths.dir.chmod(0o700)
    _let_pass(paths.dir, gid)  # last: everything that must stay closed is closed by now
    readable, blocked = _open_store(store, files, gid, name)
    for folder in to_pass:
        _let_pass(folder, gid)
    content = "logs, metrics, configurations" + (" and checkpoints" if checkpoints else "")
    mine = {paths.runs: f"{content} of {count(len(parts.runs), 'run')}, and of attempts to come"}
    ways = {*paths.dir.parents, *(way for place in readable for way in place.parents)}
    blocked |= {way: f"group {name} cannot pass it" for way in sorted(ways) if not _may(way, gid, 1)}
    return Shared(name, mine | readable, blocked)


def unshare(store: Store, campaign: CampaignRow) -> list[str]:
    """Close a campaign again; the store too, unless other campaigns of its folder are shared: return their names.

    Raises as `share`.
    """
    paths = _own_folder(store, campaign)
    paths.dir.chmod(0o700)  # from here on nobody reaches the files below
    was = Sharing.read(paths.marker)
    for place, descriptor in _opened(paths, _parts(store, campaign, paths)):
        drop_lists(descriptor)
        os.fchmod(descriptor, place.info.st_mode & 0o700)
    markers = [marker for marker in paths.root.glob(f"*/{MARKER}") if marker != paths.marker]
    others = sorted(marker.parent.name for marker in markers if Sharing.read(marker))
    if was and not others:
        files = _store_files(store)
        for file in filter(_is_mine, files):
            close_file(file)
        for folder in {paths.root, *(file.parent for file in files)}:
            bits = stat.S_IMODE(folder.stat().st_mode)
            if _is_mine(folder) and bits & 0o077 == stat.S_IXGRP and not _beside_them(paths.dir, [folder], files):
                folder.chmod(bits & 0o700)
    _record(paths, None)
    return others


def _parts(store: Store, campaign: CampaignRow, paths: CampaignPaths) -> CampaignParts:
    with store.read() as conn:
        return CampaignParts.of(paths, queries.runs(conn, campaign.id), queries.attempts(conn, campaign.id))


def _beside_them(own: Path, folders: Sequence[Path], files: Sequence[Path]) -> list[str]:
    stays = {own} | {beside(file, end) for file in files[:1] for end in ("", *LOGS, "-writer")}
    beside_them = (place for folder in folders for place in sorted(folder.iterdir()) if place not in stays)
    return [str(place) for place in beside_them if not _is_campaign_s(place)]


def _is_campaign_s(place: Path) -> bool:
    if place.is_symlink():
        return False
    mode = place.lstat().st_mode  # a copy of a campaign may be open
    closed = place.name in (BY_HAND, RECONCILER, Beside.DATA, Beside.CODE) and place.is_dir() and not mode & 0o077
    return closed or place.name == Beside.SETTINGS or ((place / MARKER).is_file() and not mode & 0o067)


def _is_private(folder: Path, gid: int) -> bool:
    """Return whether a folder is the user's own, and no other group has any right to it that would have to change."""
    info = folder.stat()
    return _is_mine(folder) and (not info.st_mode & stat.S_IRWXG or info.st_gid == gid)


def _let_pass(folder: Path, gid: int) -> None:
    os.chown(folder, -1, gid)
    folder.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_IXGRP)


def _own_folder(store: Store, campaign: CampaignRow) -> CampaignPaths:
    folder = CampaignFolder(campaign)
    folder.require(store.url_without_password)
    dir = folder.paths.dir
    if dir.is_symlink():
        raise UserError(f"{dir} is a symbolic link", "only a folder that campaign made can be shared")
    if not _is_mine(dir):
        raise UserError(f"{dir} is not yours", f"ask {user_name(dir.stat().st_uid)} to share it")
    return folder.paths


def _group(name: str | None) -> tuple[str, int]:
    """Return name and number of the group to share with, by default the user's own: no private group."""
    gids = (os.getegid(), *os.getgroups())
    mine = sorted({group_name(gid) for gid in gids} - {user_name(os.geteuid())})
    hint = f"add --group NAME; your groups: {some(mine, 8)}" if mine else "add --group NAME, one with members"
    if name is None and group_name(os.getegid()) not in mine:
        raise UserError("your group has no other members", hint)
    name = name or group_name(os.getegid())
    try:
        gid = int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise UserError(f"no group named {name}", hint) from None
    if os.geteuid() and gid not in gids:
        raise UserError(f"you are not in group {name}, so you cannot share with it", hint)
    return group_name(gid), gid


def _record(paths: CampaignPaths, sharing: Sharing | None) -> None:
    marker = load_json(paths.marker) or {}
    write_atomically(paths.marker, json.dumps(Sharing.recorded(marker, sharing)), closed=True)


def _open_runs(paths: CampaignPaths, parts: CampaignParts, gid: int, *, checkpoints: bool) -> None:
    """Open the folders of the runs first, since files made in an open folder are open, and then their files."""
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


def _open_store(store: Store, files: Sequence[Path], gid: int, group: str) -> tuple[Places, Places]:
    if not files:
        return {}, {Path(): f"the store is PostgreSQL: its owner grants {group} a role that may read"}
    blocked = Places()
    for file in files:
        if _is_private(file, gid):
            os.chown(file, -1, gid)
            open_file(file)
        elif not _may(file, gid, 4):
            blocked[file] = f"it is open to group {group_name(file.stat().st_gid)}, not to {group}"
    with store.read() as conn:
        names = [row.name for row in queries.list_campaigns(conn)]
    return {files[0]: f"the store, with all of {some(names, 5)}"}, blocked


def _store_files(store: Store) -> list[Path]:
    if not store.is_sqlite:
        return []
    file = Path(store.url_without_password.removeprefix("sqlite:///"))
    return [file, *(log for end in LOGS if (log := beside(file, end)).exists())]


def _may(place: Path, gid: int, right: int) -> bool:
    """An access control list is the work of somebody who has thought of the members: its entries are not looked at."""
    info = place.stat()
    mode = info.st_mode >> 3 if info.st_gid == gid else info.st_mode
    return bool(mode & right) or has_access_list(place)


def _is_mine(path: Path) -> bool:
    return path.lstat().st_uid == os.geteuid() and not path.is_symlink()
