"""Whether somebody else can have written what is about to be believed: settings, stores, payloads, checkpoints, code.

A path is followed from / on. Where every folder on the way belongs to this user or to root, and nobody else can write
to it, no name on the way can come to mean something else, so what is opened next is what was looked at. In a public
folder with the sticky bit, as /tmp is, that holds for entries of this user's and of root's.

What cannot be seen from here: members of a group that the directory service does not list, rights by NFSv4 ACLs that
the server does not show in the mode, and root of another host on a file system that does not squash it. Where one does,
root's files are nobody's, and refused to root too: they may be from any host.
"""

from __future__ import annotations

import errno
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

from .access_lists import Tag, access_list
from .private_files import make_folder
from .regular_files import open_regular

TRUSTED_GROUPS: Final = "CAMPAIGN_TRUSTED_GROUPS"
"""The variable with the groups, by name or number, whose members may do all that the user may."""

_MAY_WRITE: Final = 0x02
_MOST_LINKS: Final = 40  # as the kernel


class Distrusted(Exception):
    """Somebody else may have written a file, or can replace it.

    Attributes:
        why: what is wrong, with the path.
        hint: what to do about it.
        owner: the user that it belongs to, where that is what is wrong.
    """

    def __init__(self, why: str, hint: str, owner: int | None = None) -> None:
        super().__init__(why)
        self.why, self.hint, self.owner = why, hint, owner


def distrust(path: Path, root: Path | None = None) -> Distrusted | None:
    """Why a file or folder must not be believed; None if only this user, or root, can have written it.

    Looks at the path and at everything that it leads through, symbolic links among them.

    Args:
        path: exists.
        root: `path`, which is the default, or a folder above it. What lies below it, `path` included, must be this
            user's own. It and what lies above may also be root's, and public with the sticky bit.

    Raises:
        OSError: one of them cannot be looked at.
        ValueError: `root` is not above `path`.
    """
    if root is not None and not path.is_relative_to(root):
        raise ValueError(f"{root} is not above {path}")
    for place, found in _way(path.absolute()):
        if doubt := _doubt(place, found, own=False):
            return doubt
    below = (path, *path.parents)[: len(path.parts) - len(root.parts)] if root else ()
    return next((doubt for place in reversed(below) if (doubt := _doubt(place, place.stat(), own=True))), None)


def distrust_tree(folder: Path, root: Path) -> Distrusted | None:
    """As `distrust`, of a folder with all that lies in it. Where a symbolic link of this user's leads is not asked.

    Raises:
        OSError: one of them cannot be looked at.
        ValueError: `root` is not above `folder`.
    """
    if doubt := distrust(folder, root):
        return doubt
    return next((doubt for place, found in _inside(folder) if (doubt := _doubt(place, found, own=True))), None)


def open_trusted(path: Path, root: Path | None = None) -> FileIO:
    """Opens a file to read its bytes that only this user, or root, can have written.

    Args:
        root: as of `distrust`.

    Raises:
        Distrusted: somebody else may have written it.
        FileNotFoundError: it is not there.
        OSError: it cannot be opened, or is a folder, a pipe or a device.
        ValueError: `root` is not above `path`.
    """
    if doubt := distrust(path, root):
        raise doubt
    file = open_regular(path)
    if doubt := _doubt(path, os.fstat(file.fileno()), own=root not in (None, path)):
        file.close()
        raise doubt
    return file


def trusted_bytes(path: Path, root: Path | None = None) -> bytes:
    """What a file holds that only this user, or root, can have written. Arguments and errors are `open_trusted`'s."""
    with open_trusted(path, root) as file:
        return file.readall()


def planted(path: Path) -> Distrusted | None:
    """Why a file in a folder that is trusted by now must not be believed; None also where it is not there."""
    try:
        return _doubt(path, path.lstat(), own=False)
    except OSError:
        return None


def private_folder(path: Path) -> str:
    """Makes a folder of this user's alone, or takes it if that is what it is; why not, otherwise.

    Returns:
        "" if only this user can have written into it, and nobody else can put another in its place.
    """
    try:
        make_folder(path, closed=True)
        if path.is_symlink():
            return f"{path} is a symbolic link"
        doubt = distrust(path, path.parent)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return f"{path}: {doubt}" if doubt else ""


def user_name(user: int) -> str:
    """The name of a user, the number of one who has none."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _way(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    here, ahead, links = Path(path.anchor), [*reversed(path.parts[1:])], 0
    yield here, here.stat()
    while ahead:
        if (name := ahead.pop()) == os.pardir:
            here = here.parent
            continue
        place = here / name
        found = place.lstat()
        yield place, found
        if not stat.S_ISLNK(found.st_mode):
            here = place
            continue
        if (links := links + 1) > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = place.readlink()
        here = Path(target.anchor) if target.is_absolute() else here
        ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _inside(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # a file on its way to another name
                yield Path(entry.path), entry.stat(follow_symlinks=False)
            if entry.is_dir(follow_symlinks=False):
                yield from _inside(Path(entry.path))


def _doubt(place: Path, found: os.stat_result, *, own: bool) -> Distrusted | None:
    """What is wrong with one file or folder; `own`: it must be this user's, and is no public place."""
    folder = stat.S_ISDIR(found.st_mode)
    owners = {os.geteuid()} if own else {os.geteuid(), 0, _unnamed_owner() if folder else 0}
    if found.st_uid not in owners and (own or not _is_trusted(found.st_uid)):
        hint = "only you, or root, may own what a campaign believes: use a file or a folder of your own"
        hint += _or_trust(found) if folder and not own else ""
        return Distrusted(f"{place} belongs to user {user_name(found.st_uid)}", hint, found.st_uid)
    public = not own and folder and found.st_mode & stat.S_ISVTX
    if stat.S_ISLNK(found.st_mode) or public or not _others_may_write(place, found, own=own):
        return None
    return Distrusted(f"others can write to {place}", _repair(place, found))


def _repair(place: Path, found: os.stat_result) -> str:
    if found.st_uid == os.geteuid():
        return f"`chmod go-w {place}`" + (f", or `setfacl -b {place}`" if access_list(place) else "")
    if stat.S_ISDIR(found.st_mode):
        ask = f"ask its owner for `chmod +t {place}`, or use a folder that does not lie below it"
        return ask if found.st_mode & stat.S_IWOTH or access_list(place) else ask + _or_trust(found)
    return f"ask its owner for `chmod go-w {place}`, or use a file of your own"


def _or_trust(found: os.stat_result) -> str:
    """The way out in the folder of a project, whose members work in it together; root's own group is none."""
    if found.st_gid == 0 or not found.st_mode & stat.S_IWGRP:
        return ""
    return f"; if you trust all of its group as yourself, `export {TRUSTED_GROUPS}={group_name(found.st_gid)}`"


def _others_may_write(place: Path, found: os.stat_result, *, own: bool) -> bool:
    if found.st_mode & stat.S_IWOTH:
        return True
    if not found.st_mode & stat.S_IWGRP:  # with an ACL these bits are its mask, the most that any entry can give
        return False
    for who, rights, number in access_list(place) or ((Tag.OWNING_GROUP, _MAY_WRITE, 0),):
        if not rights & _MAY_WRITE:
            continue
        if who == Tag.USER and number not in (0, os.geteuid()):
            return True
        group = found.st_gid if who == Tag.OWNING_GROUP else number
        if who in (Tag.OWNING_GROUP, Tag.GROUP) and not _only_us(group) and (own or not _is_named(group)):
            return True
    return False


def _only_us(gid: int) -> bool:
    """Whether a group is the user's private one, as many systems give everyone: of the user's name, nobody else in it.

    The name is asked for too because a directory service may not list who else is in a group.
    """
    return gid != 0 and _private_group(gid, os.geteuid())


def _is_named(gid: int) -> bool:
    """Whether the user trusts a group by name: a project's folder often belongs to one."""
    named = set(os.environ.get(TRUSTED_GROUPS, "").replace(",", " ").split())
    return bool(named and {str(gid), group_name(gid)} & named)


def _is_trusted(user: int) -> bool:
    """Whether a user is in a group that is trusted: its folder may well belong to the head of the project."""
    if not os.environ.get(TRUSTED_GROUPS):
        return False
    try:
        known = pwd.getpwuid(user)
        return any(map(_is_named, os.getgrouplist(known.pw_name, known.pw_gid)))
    except (KeyError, OSError):
        return False


def group_name(gid: int) -> str:
    """Return the name of a group, its number if it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


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
    """Whom folders above may seem to belong to that are root's: 0, except in a container that has no name for root.

    In a user namespace that does not map the machine's root, / and all system folders show an owner that stands for
    everyone without a name. Nothing would run there if that were refused; a file of such an owner always is.
    """
    try:
        mapped = [line.split() for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()]
        if any(outside == "0" for _inside_it, outside, _count in mapped):
            return 0
        return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
