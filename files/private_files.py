"""Opens files, and makes them for a user alone, or readable for a group if the folder above was opened to it.

A folder's own mode records to whom it is open: `campaign share` gives it the group, the set-group-ID bit, and `r-x` for
the group. Everything else is closed, for any umask and access control list of the folder above.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final

_OF_ONE_FILE: Final = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EINVAL, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG),
        *(errno.ENXIO, errno.ENODEV, errno.EEXIST),
    }
)


def open_regular(path: Path) -> FileIO:
    """Open a file to read its bytes, without a buffer; raises OSError for a folder, a pipe or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        return FileIO(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def concerns_one_file(error: OSError) -> bool:
    """Return whether an error concerns a single file or folder; others may concern the whole file system."""
    return error.errno in _OF_ONE_FILE


ACCESS_LIST: Final = "system.posix_acl_access"
_OPENED: Final = stat.S_ISGID | stat.S_IRGRP | stat.S_IXGRP


def has_access_list(place: Path) -> bool:
    """Return whether a place has an access control list besides its mode, as by setfacl."""
    try:
        return ACCESS_LIST in os.listxattr(place)
    except OSError:  # a file system without them
        return False


def drop_lists(place: str | Path | int) -> None:
    """Remove the access control lists of a file or folder, and the list for new files in it, if that is possible."""
    for name in (ACCESS_LIST, "system.posix_acl_default"):
        with suppress(OSError):
            os.removexattr(place, name)


def is_opened(folder: Path) -> bool:
    """Return whether the folder is this user's, and was opened to a group."""
    info = folder.stat()
    return info.st_mode & _OPENED == _OPENED and info.st_uid == os.geteuid()


def make_folder(folder: Path, *, closed: bool = False) -> None:
    """Make a folder, unless it exists: for the user alone if `closed`, else open as its parent, which exists."""
    try:
        folder.mkdir(0o700)  # below a default list this is what makes its entries of no effect
    except FileExistsError:
        if not folder.is_dir():
            raise
        return
    drop_lists(folder)  # and this keeps them from what will be in it
    mode = 0o700 if closed or not is_opened(folder.parent) else 0o750
    folder.chmod(mode | folder.stat().st_mode & stat.S_ISGID)


def make_private(folder: Path) -> None:
    """Make a folder, and missing folders above it, for the user alone; an existing folder stays as it is."""
    missing = [place for place in (folder, *folder.parents) if not place.is_dir()]
    for place in reversed(missing):
        make_folder(place, closed=True)


def make_below(base: Path, folder: Path, *, closed: bool = False) -> None:
    """Make a folder, and missing folders between it and ``base``, each as `make_folder` does.

    ``base`` is never created: a shared folder that is away leaves an empty mount point, where new files are lost.
    """
    place = base
    for name in folder.relative_to(base).parts:
        place /= name
        make_folder(place, closed=closed)


def open_private(path: str | Path, flags: int, *, closed: bool = False) -> int:
    """Open a file as an opener of `open`; a new file is the user's alone if `closed`, else open as its folder."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        if flags & os.O_CREAT and not closed and is_opened(Path(path).parent):
            info = os.fstat(descriptor)
            if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & stat.S_IRGRP:
                open_file(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_file(path: str | Path | int) -> None:
    """Let the group of a file of this user's read it, and nobody write to it."""
    info = os.stat(path)  # noqa: PTH116 - of an open file too
    drop_lists(path)  # else the group's bits of the mode would be a list's mask
    os.chmod(path, stat.S_IMODE(info.st_mode) & 0o700 | 0o040 | (0o010 if info.st_mode & stat.S_IXUSR else 0))  # noqa: PTH101


def close_file(path: Path) -> None:
    """Close a file to all but this user."""
    drop_lists(path)
    path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o700)
