"""POSIX access control lists, as Linux keeps them with a file or folder (acl(5)): read, and removed."""

from __future__ import annotations

import errno
import os
import struct
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

_ACCESS: Final = "system.posix_acl_access"
_DEFAULT: Final = "system.posix_acl_default"
_HEADER_BYTES: Final = 4
_ENTRY: Final = "<HHI"
_NONE: Final = frozenset({errno.ENODATA, errno.ENOTSUP})


class Tag(IntEnum):
    """Whom an entry is about."""

    OWNER = 0x01
    USER = 0x02
    OWNING_GROUP = 0x04
    GROUP = 0x08
    MASK = 0x10
    OTHER = 0x20


class Entry(NamedTuple):
    """One entry: rights as in a mode (4 to read, 2 to write, 1 to pass); the number is that of a `USER` or `GROUP`."""

    tag: int
    rights: int
    number: int


def access_list(place: Path) -> tuple[Entry, ...]:
    """The entries of a place's list; none where it has only its mode.

    Raises:
        OSError: it cannot be looked at.
    """
    try:
        raw = os.getxattr(place, _ACCESS)
    except OSError as error:
        if error.errno in _NONE:
            return ()
        raise
    return tuple(Entry(*fields) for fields in struct.iter_unpack(_ENTRY, raw[_HEADER_BYTES:]))


def drop_lists(place: str | Path | int) -> None:
    """Removes the lists of a file or folder, with that for what will be made in it, where they may be removed."""
    for name in (_ACCESS, _DEFAULT):
        with suppress(OSError):
            os.removexattr(place, name)
