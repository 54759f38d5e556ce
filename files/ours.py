"""The one rule for deleting files and changing their modes: only files that this program made, and nothing behind them.

The caller names our files, from a marker, a manifest or a row of the store. Every folder is opened from the one above
it: nothing is reached through a symbolic link or on another mount. All else is reported, and stays as it is.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Part(Enum):
    """How much of a place is ours: a file, a folder without the files of others, or a folder with all in it."""

    FILE = 1
    FOLDER = 2
    TREE = 3


PartOf = Callable[[tuple[str, ...]], Part | None]
"""Classifies a place by the names that lead to it from the root; None: it is not ours."""


class Place(NamedTuple):
    """A file or folder on the way through a root."""

    path: Path
    part: Part | None  # how much of it is ours; None if it is not
    info: os.stat_result  # its own status: that of a link, not of its target
    folder: int  # a descriptor of the folder that holds it, open until the next place is asked for
    why: str = ""  # the reason why it is not ours

    @property
    def kept(self) -> Kept:
        """The report on a place that stays."""
        return Kept(self.path, self.why)


class Kept(NamedTuple):
    """A place that stays, and why; `error` if the system refused to delete it."""

    path: Path
    why: str
    error: OSError | None = None


def walk(root: Path, part_of: PartOf, at: tuple[str, ...] = ()) -> Iterator[Place]:
    """Yield every place of a root that is ours, each folder after its content, and the topmost of each that is not.

    `at` has the names that lead to the one place that is wanted. A link at the root's own place is followed.
    """
    with _opened(root) as descriptor:
        yield from _below(descriptor, _mount(descriptor), root, (), part_of, at)


def remove(place: Path, root: Path | None = None) -> list[Kept]:
    """Remove a file, link or folder; report the places that stay. No link on the way from `root` is followed."""
    root = root or place.parent
    names = place.relative_to(root).parts
    return sweep(root, _part_of(names), names)


def named(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    """Return the places in a folder, which need not exist, whose whole name is a name of this program."""
    try:
        return sorted(place for place in folder.iterdir() if pattern.fullmatch(place.name))
    except (FileNotFoundError, NotADirectoryError):
        return []


def measure(root: Path, part_of: PartOf | None = None, at: tuple[str, ...] = ()) -> tuple[int, list[Kept]]:
    """Return the bytes that `sweep` would free, and the places that it would leave. Arguments are as for `walk`."""
    size, kept = 0, list[Kept]()
    with suppress(FileNotFoundError):
        for place in walk(root, part_of or _part_of(at), at):
            if place.part is None:
                kept.append(place.kept)
            elif not stat.S_ISDIR(place.info.st_mode):
                size += place.info.st_size
    return size, kept


def _part_of(names: tuple[str, ...]) -> PartOf:
    return lambda parts: Part.FOLDER if len(parts) < len(names) else Part.TREE


def sweep(root: Path, part_of: PartOf, at: tuple[str, ...] = ()) -> list[Kept]:
    """Remove all places of a root that are ours; report places that stay. Arguments are as for `walk`."""
    kept: list[Kept] = []
    try:
        for place in walk(root, part_of, at):
            if place.part is None:
                kept.append(place.kept)
            elif not at or len(place.path.relative_to(root).parts) >= len(at):  # not the folders on the way to it
                kept += _removed(place)
    except OSError as error:
        if error.errno != errno.ENOENT:
            kept.append(Kept(root.joinpath(*at), error.strerror or str(error), error))
    return kept


def _removed(place: Place) -> list[Kept]:
    try:
        if stat.S_ISDIR(place.info.st_mode):
            os.rmdir(place.path.name, dir_fd=place.folder)
        else:
            os.unlink(place.path.name, dir_fd=place.folder)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTEMPTY):  # what stays in it is reported
            return []
        if error.errno == errno.EBUSY:
            return [Kept(place.path, "something is mounted there")]
        return [Kept(place.path, error.strerror or str(error), error)]
    return []


def _below(
    folder: int, mount: tuple[int, int], path: Path, parts: tuple[str, ...], part_of: PartOf, at: tuple[str, ...]
) -> Iterator[Place]:
    names = at[:1] or sorted(os.listdir(folder))
    for name in names:
        within, place = (*parts, name), path / name
        try:
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:  # jobs replace and remove files all the time
            continue
        part = part_of(within)
        whole = part is Part.TREE and len(at) < 2
        if doubt := _doubt(folder, name, info, mount, part):
            yield Place(place, None, info, folder, doubt)
            continue
        if stat.S_ISDIR(info.st_mode):
            with suppress(FileNotFoundError), _opened(name, folder) as inner:
                yield from _below(inner, mount, place, within, (lambda _: Part.TREE) if whole else part_of, at[1:])
        yield Place(place, part, info, folder)


def _doubt(folder: int, name: str, info: os.stat_result, mount: tuple[int, int], part: Part | None) -> str:
    if part is None or name == os.pardir:
        return "not of this program"
    is_folder = stat.S_ISDIR(info.st_mode)
    if part is not Part.TREE and stat.S_ISLNK(info.st_mode):
        return "a symbolic link"
    if (part is Part.FOLDER and not is_folder) or (part is Part.FILE and not stat.S_ISREG(info.st_mode)):
        return "not of this program"
    if stat.S_ISLNK(info.st_mode):
        return ""
    try:
        descriptor = os.open(name, _FOLDER if is_folder else _FILE, dir_fd=folder)
    except OSError as error:
        return error.strerror or str(error)
    try:
        return "" if _mount(descriptor) == mount else "something is mounted there"
    finally:
        os.close(descriptor)


@contextmanager
def _opened(name: Path | str, folder: int | None = None) -> Iterator[int]:
    flags = _FOLDER if folder is not None else _FOLDER & ~os.O_NOFOLLOW
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _mount(descriptor: int) -> tuple[int, int]:
    """The device and the number of the mount: a bind mount has the device of its surroundings."""
    number = -1
    with suppress(OSError), open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as lines:  # noqa: PTH123
        number = next((int(line.split()[1]) for line in lines if line.startswith("mnt_id:")), -1)
    return os.fstat(descriptor).st_dev, number
