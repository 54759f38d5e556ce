"""Lets a group read a campaign, and takes it back: its runs' folders and the store, not its jobs and checkpoints.

What is opened follows from what `status`, `explain`, `report`, `recommend`, `compare` and `logs` read. What running
attempts make later follows by itself: see `files/private_files.py`.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...db import queries
from ...db.records import CampaignRow
from ...db.store import Store
from ...files.access_lists import Tag, access_list, drop_lists
from ...files.atomic_files import load_json, write_atomically
from ...files.private_files import close_file, open_file
from ...jobs.shared.layout import MARKER, AttemptPaths, CampaignPaths
from ...jobs.shared.sharing import Sharing
from ..errors import UserError
from ..formatting import count, some
from ..reconcile.campaign_folder import CampaignFolder

_CHECKPOINTS: Final = "checkpoints"
_FORWARD: Final = "forward"
_SECRET: Final = AttemptPaths(Path()).forward_payload.name
_LOGS_OF_SQLITE: Final = ("-wal", "-shm", "-journal")


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
    """Opens a campaign for a group to read, again if it was opened before.

    Args:
        store: The store of the campaign.
        campaign: What to open.
        group: A name or a number; None for the one that it is shared with, else for the user's own.
        checkpoints: Whether to open checkpoints as well.

    Raises:
        UserError: The user has no such group, or does not own the campaign's folder.
        Unreachable: Its folder is away.
        OSError: Something cannot be opened.
    """
    paths = _own_folder(campaign)
    before = Sharing.read(paths.marker)
    name, gid = _group(group or (before.group if before else None))
    sharing = Sharing(name, checkpoints)
    _record(paths, sharing)
    _open_folder(paths.runs, gid)
    for run in _folders_in(paths.runs):
        _open_tree(run, gid, closed=(_FORWARD,) if checkpoints else (_FORWARD, _CHECKPOINTS))
    _close_besides(paths)
    _give(paths.marker, gid)
    open_file(paths.marker)
    _open_folder(paths.dir, gid)  # last: what was open to too many by accident has been closed by now
    readable, blocked = _open_store(store, gid, name)
    _let_in(paths.root, gid)
    with store.read() as conn:
        runs = len(queries.run_names(conn, campaign.id))
    what = "logs, metrics, configurations" + (" and checkpoints" if checkpoints else "")
    mine = SharedPlace(paths.runs, f"{what} of {count(runs, 'run')}, and of attempts to come")
    ways = {*paths.dir.parents, *(way for place in readable for way in place.path.parents)}
    blocked += [SharedPlace(way, _remedy(way, gid, name)) for way in sorted(ways) if not _lets_through(way, gid)]
    return SharedCampaign(campaign.name, paths.root, sharing, (mine, *readable), tuple(blocked))


def unshare(store: Store, campaign: CampaignRow) -> SharedCampaign:
    """Closes a campaign again; the store too, unless another campaign of its folder is shared. Raises as `share`."""
    paths = _own_folder(campaign)
    was = Sharing.read(paths.marker)
    paths.dir.chmod(0o700)  # from here on nobody reaches what is below
    _record(paths, None)
    close_file(paths.marker)
    _close_tree(paths.runs)
    others = _shared_besides(paths)
    if was and not others:
        for file in _store_files(store):
            if _is_mine(file):
                close_file(file)
        for folder in {paths.root, *(file.parent for file in _store_files(store))}:
            if _is_mine(folder) and stat.S_IMODE(folder.stat().st_mode) == 0o2750:  # as `share` left it
                folder.chmod(0o700)
    return SharedCampaign(campaign.name, paths.root, None, shared_with=others)


def _groups_of_user() -> list[str]:
    """Names of the groups that the user may share with: his own, but not one that only he is in."""
    own = pwd.getpwuid(os.geteuid()).pw_name if _known(pwd.getpwuid, os.geteuid()) else ""
    names = {_name(gid) for gid in (os.getegid(), *os.getgroups())}
    return sorted(names - {own})


def _own_folder(campaign: CampaignRow) -> CampaignPaths:
    folder = CampaignFolder(campaign)
    folder.require()
    if not _is_mine(folder.paths.dir):
        owner = _known(pwd.getpwuid, folder.paths.dir.stat().st_uid)
        raise UserError(
            f"{folder.paths.dir} is not yours", f"ask {owner.pw_name if owner else 'its owner'} to share it"
        )
    return folder.paths


def _group(name: str | None) -> tuple[str, int]:
    """The group's name and number."""
    mine = _groups_of_user()
    hint = f"your groups: {some(mine, 8)}" if mine else "you are in no group with others: ask for one"
    if name is None:
        own = _name(os.getegid())
        if own not in mine:
            raise UserError("which group? Yours is of you alone", f"add --group NAME; {hint}")
        name = own
    try:
        gid = int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise UserError(f"no group named {name}", hint) from None
    if os.geteuid() and gid not in (os.getegid(), *os.getgroups()):
        raise UserError(f"you are not in group {name}, so you cannot share with it", hint)
    return _name(gid), gid


def _name(gid: int) -> str:
    found = _known(grp.getgrgid, gid)
    return found.gr_name if found else str(gid)


def _known(look: Callable[[int], Any], number: int) -> Any:
    """The entry of a user or group; None for a number without one."""
    with suppress(KeyError):
        return look(number)
    return None


def _record(paths: CampaignPaths, sharing: Sharing | None) -> None:
    marker = load_json(paths.marker) or {}
    write_atomically(paths.marker, json.dumps(Sharing.recorded(marker, sharing)), closed=True)


def _shared_besides(paths: CampaignPaths) -> tuple[str, ...]:
    markers = (marker for marker in paths.root.glob(f"*/{MARKER}") if marker != paths.marker)
    return tuple(sorted(marker.parent.name for marker in markers if Sharing.read(marker)))


def _open_tree(folder: Path, gid: int, closed: tuple[str, ...] = ()) -> None:
    """A folder before what is in it: what is made meanwhile is made open."""
    _open_folder(folder, gid)
    with os.scandir(folder) as entries:
        for entry in list(entries):
            path = Path(entry.path)
            with suppress(FileNotFoundError):  # jobs replace and remove files all the time
                if entry.is_dir(follow_symlinks=False):
                    if entry.name in closed:
                        path.chmod(0o700)
                    elif _is_mine(path):
                        _open_tree(path, gid)
                elif entry.is_file(follow_symlinks=False) and _is_mine(path) and entry.name != _SECRET:
                    _give(path, gid)
                    open_file(path)


def _close_besides(paths: CampaignPaths) -> None:
    """What lies beside the runs was protected by the campaign's folder: jobs, runs by hand, files of other tools."""
    for place in paths.dir.iterdir():
        if place.is_dir() and not place.is_symlink() and place != paths.runs and _is_mine(place):
            place.chmod(place.stat().st_mode & 0o700)


def _close_tree(folder: Path) -> None:
    folder.chmod(folder.stat().st_mode & 0o700)
    with os.scandir(folder) as entries:
        for entry in list(entries):
            path = Path(entry.path)
            with suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False) and _is_mine(path):
                    _close_tree(path)
                elif entry.is_file(follow_symlinks=False) and _is_mine(path):
                    close_file(path)


def _open_folder(folder: Path, gid: int) -> None:
    _give(folder, gid)
    drop_lists(folder)
    folder.chmod(folder.stat().st_mode & 0o700 | 0o050 | stat.S_ISGID)


def _give(path: Path, gid: int) -> None:
    if path.stat().st_gid != gid:
        os.chown(path, -1, gid)


def _open_store(store: Store, gid: int, group: str) -> tuple[list[SharedPlace], list[SharedPlace]]:
    """Opens a SQLite store; returns it, and what keeps the group from reading it."""
    files = list(_store_files(store))
    if not files:
        return [], [SharedPlace(Path(), f"the store is PostgreSQL: its owner grants {group} a role that may read")]
    folder = files[0].parent
    _let_in(folder, gid)
    blocked = []
    for file in files:
        found = file.stat()
        if _is_mine(file) and (found.st_gid == gid or not found.st_mode & stat.S_IRWXG):
            _give(file, gid)
            open_file(file)
        elif not _may(file, gid, 4):
            blocked.append(SharedPlace(file, f"it is open to group {_name(found.st_gid)}, not to {group}"))
    passes_on = folder.stat().st_mode & stat.S_ISGID and folder.stat().st_gid == gid
    if not passes_on and os.getegid() != gid:
        blocked.append(SharedPlace(folder, f"what SQLite makes in it is of group {_name(os.getegid())}: chmod g+s"))
    with store.read() as conn:
        names = [row.name for row in queries.list_campaigns(conn)]
    return [SharedPlace(files[0], f"the store, with all of {some(names, 5)}")], blocked


def _store_files(store: Store) -> Iterator[Path]:
    """The SQLite file and those beside it that are there; nothing for another store."""
    if store.is_sqlite:
        file = Path(store.url_without_password.removeprefix("sqlite:///"))
        yield file
        yield from (log for end in _LOGS_OF_SQLITE if (log := file.with_name(file.name + end)).exists())


def _let_in(folder: Path, gid: int) -> None:
    """Opens a folder of the user's own that was closed to everybody else; what others may use stays as it is."""
    found = folder.stat()
    if _is_mine(folder) and (
        not found.st_mode & stat.S_IRWXG or (found.st_gid == gid and found.st_mode & stat.S_IXGRP)
    ):
        _give(folder, gid)
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | 0o050 | stat.S_ISGID)


def _lets_through(folder: Path, gid: int) -> bool:
    return _may(folder, gid, 1)


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
        owner = _known(pwd.getpwuid, found.st_uid)
        return f"only {owner.pw_name if owner else found.st_uid} can let group {group} pass"
    return f"chmod g+x {folder}" if found.st_gid == gid else f"setfacl -m g:{group}:x {folder}"


def _folders_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.is_symlink() and _is_mine(path)]


def _is_mine(path: Path) -> bool:
    return path.stat().st_uid == os.geteuid()
