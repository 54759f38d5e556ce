"""Decides whether another user can have written a file that is about to be used: a store, payload, checkpoint or code.

Every folder from / to the file counts, also behind symbolic links: each must belong to this user or to root, and nobody
else may write to it. In a public folder with the sticky bit, as /tmp is, this holds for entries of this user and of
root. Not visible from here: members of a group that the directory service does not list, and NFSv4 access control
lists. Where NFS squashes root, files of root belong to nobody and are refused.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Final

from .private_files import has_access_list, make_folder, open_regular

TRUSTED_GROUPS: Final = "CAMPAIGN_TRUSTED_GROUPS"
"""The variable with trusted groups, by name or number: their members may do all that the user may."""


class Distrusted(Exception):
    """Another user may have written a file, or can replace it: `why`, a hint, and the other `owner` if known."""

    def __init__(self, reason: str, hint: str, owner: int | None = None) -> None:
        super().__init__(reason)
        self.why, self.hint, self.owner = reason, hint, owner


def distrust(path: Path, root: Path | None = None) -> Distrusted | None:
    """Return why a file or folder must not be trusted; None if only this user, or root, can have written it.

    Everything below `root`, by default nothing, must belong to this user. The root and the folders above may also
    belong to root, or be public and sticky. Raises OSError if a place on the way cannot be looked at.
    """
    if root is not None and not path.is_relative_to(root):
        raise ValueError(f"{root} is not above {path}")
    path.stat()  # symbolic links in a circle end here
    for place, info in _way(path.absolute()):
        if doubt := _doubt(place, info, own=False):
            return doubt
    below = (path, *path.parents)[: len(path.parts) - len(root.parts)] if root else ()
    return next((doubt for place in reversed(below) if (doubt := _doubt(place, place.stat(), own=True))), None)


def distrust_tree(folder: Path, root: Path) -> Distrusted | None:
    """Check a folder with all its content, as `distrust`; targets of this user's symbolic links are not followed."""
    if doubt := distrust(folder, root):
        return doubt
    return next((doubt for place, info in _inside(folder) if (doubt := _doubt(place, info, own=True))), None)


def open_trusted(path: Path, root: Path | None = None) -> FileIO:
    """Open a file for reading that only this user, or root, can have written.

    Raises Distrusted, FileNotFoundError, or OSError if it cannot be opened, or is a folder, a pipe or a device.
    """
    if doubt := distrust(path, root):
        raise doubt
    file = open_regular(path)
    if doubt := _doubt(path, os.fstat(file.fileno()), own=root not in (None, path)):
        file.close()
        raise doubt
    return file


def trusted_bytes(path: Path, root: Path | None = None) -> bytes:
    """Return the content of a file that `open_trusted` opens. Raises as it does."""
    with open_trusted(path, root) as file:
        return file.readall()


def planted(path: Path) -> Distrusted | None:
    """Check a single file in a folder that is trusted by now; return None also if it does not exist."""
    try:
        return _doubt(path, path.lstat(), own=False)
    except OSError:
        return None


def private_folder(path: Path) -> str:
    """Make a folder for this user alone, or accept it if it is; return why not, "" if it is."""
    try:
        make_folder(path, closed=True)
        if path.is_symlink():
            return f"{path} is a symbolic link"
        doubt = distrust(path, path.parent)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return f"{path}: {doubt}" if doubt else ""


def user_name(user: int) -> str:
    """Return the name of a user, the number if it has none."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def group_name(gid: int) -> str:
    """Return the name of a group, its number if it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _way(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for place in (*reversed(path.parents), path):
        info = place.lstat()
        yield place, info
        if stat.S_ISLNK(info.st_mode):
            yield from _way(place.parent / place.readlink())


def _inside(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # a file on its way to another name
                yield Path(entry.path), entry.stat(follow_symlinks=False)
            if entry.is_dir(follow_symlinks=False):
                yield from _inside(Path(entry.path))


def _doubt(place: Path, info: os.stat_result, *, own: bool) -> Distrusted | None:
    """Check one file or folder; `own`: it must belong to this user, and not be public."""
    folder = stat.S_ISDIR(info.st_mode)
    owners = {os.geteuid()} if own else {os.geteuid(), 0, _unnamed_owner() if folder else 0}
    if info.st_uid not in owners and (own or not _is_trusted(info.st_uid)):
        return Distrusted(f"{place} belongs to user {user_name(info.st_uid)}", _hint(place, info), info.st_uid)
    public = not own and folder and info.st_mode & stat.S_ISVTX
    if stat.S_ISLNK(info.st_mode) or public or not _others_may_write(place, info, own=own):
        return None
    return Distrusted(f"others can write to {place}", _hint(place, info))


def _hint(place: Path, info: os.stat_result) -> str:
    if info.st_uid == os.geteuid():
        return f"`chmod go-w {place}`"
    if not stat.S_ISDIR(info.st_mode) or info.st_mode & stat.S_IWOTH or not info.st_mode & stat.S_IWGRP:
        return "use a file or a folder of your own"
    group = group_name(info.st_gid)
    return f"use a folder of your own; if you trust all of its group as yourself, `export {TRUSTED_GROUPS}={group}`"


def _others_may_write(place: Path, info: os.stat_result, *, own: bool) -> bool:
    if info.st_mode & stat.S_IWOTH:
        return True
    if not info.st_mode & stat.S_IWGRP:  # with an access control list these bits are its mask
        return False
    if not own and _is_named(info.st_gid):
        return False
    return has_access_list(place) or not _only_us(info.st_gid)


def _only_us(gid: int) -> bool:
    """The name counts too, because a directory service may not list all members."""
    return gid != 0 and _private_group(gid, os.geteuid())


def _is_named(gid: int) -> bool:
    trusted = set(os.environ.get(TRUSTED_GROUPS, "").replace(",", " ").split())
    return bool(trusted and {str(gid), group_name(gid)} & trusted)


def _is_trusted(user: int) -> bool:
    """Return whether a user is in a trusted group: the folder of a project may belong to its head."""
    if not os.environ.get(TRUSTED_GROUPS):
        return False
    try:
        entry = pwd.getpwuid(user)
        return any(map(_is_named, os.getgrouplist(entry.pw_name, entry.pw_gid)))
    except (KeyError, OSError):
        return False


@cache
def _private_group(gid: int, user: int) -> bool:
    try:
        group, name = grp.getgrgid(gid), pwd.getpwuid(user).pw_name
    except KeyError:
        return False
    if group.gr_name != name or set(group.gr_mem) - {name}:
        return False
    return not any(other.pw_gid == gid and other.pw_uid != user for other in pwd.getpwall())


@cache
def _unnamed_owner() -> int:
    """Return the owner that system folders show in a container that does not map the machine's root; else 0."""
    try:
        mapped = [line.split() for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()]
        if any(outside == "0" for _inside_it, outside, _count in mapped):
            return 0
        return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
