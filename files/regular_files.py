"""Opens files that jobs write: a pipe or a device in a file's place keeps nobody waiting."""

from __future__ import annotations

import errno
import os
import stat
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
    """Open a file to read its bytes, without a buffer.

    Raises:
        FileNotFoundError: it does not exist.
        OSError: it cannot be opened, or is a folder, a pipe or a device.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        return FileIO(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def concerns_one_file(error: OSError) -> bool:
    """Return whether an error is that of one file or folder; others may be the file system's, for all its files."""
    return error.errno in _OF_ONE_FILE
