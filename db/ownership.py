"""Whether only its owner can have written what lies in a folder: a payload says what a job runs as this user."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path


def distrust(path: Path, root: Path) -> str:
    """Why a file or folder must not be believed; "" if only this user can have written it.

    Looks at the path and at every folder above it up to ``root``, which may be a public one with the sticky bit, as
    /tmp is: there nobody can replace what is this user's.

    Args:
        path: exists.
        root: `path` or a folder above it.

    Raises:
        OSError: one of them cannot be looked at.
        ValueError: `root` is not above `path`.
    """
    if not path.is_relative_to(root):
        raise ValueError(f"{root} is not above {path}")
    for place in (path, *path.parents):
        found, last = place.stat(), place == root
        sticky = last and bool(found.st_mode & stat.S_ISVTX)
        if not sticky and (
            found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _only_us(found.st_gid))
        ):
            return f"others can write to {place}"
        if found.st_uid not in ((0, os.geteuid()) if last else (os.geteuid(),)):
            return f"{place} belongs to user {found.st_uid}"
        if last:
            break
    return ""


def private_folder(path: Path) -> str:
    """Makes a folder of this user's alone, or takes it if that is what it is; why not, otherwise.

    Returns:
        "" if only this user can have written into it, and nobody else can put another in its place.
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        above = path.parent.stat()
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            found = os.fstat(opened)
        finally:
            os.close(opened)
    except OSError as error:
        return f"{path}: {error.strerror}"
    if found.st_uid != os.geteuid():
        return f"{path} belongs to user {found.st_uid}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to {path}"
    replaceable = above.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not above.st_mode & stat.S_ISVTX
    if replaceable or above.st_uid not in (0, os.geteuid()):
        return f"others can replace {path}"
    return ""


def _only_us(gid: int) -> bool:
    """Whether the group is the user's private one, as many systems give everyone: of the user's own name."""
    try:
        return grp.getgrgid(gid).gr_name == pwd.getpwuid(os.geteuid()).pw_name and gid != 0
    except KeyError:
        return False
