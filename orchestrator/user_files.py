"""Paths as users write them, and files that they ask for: whole or not at all, never through a link of another user."""

from __future__ import annotations

import errno
import os
import re
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from dscampaign.files.private_files import ACCESS_LIST, open_regular

from .errors import UserError

_OPEN_FILES: Final = re.compile(r"/dev/stdin|/(?:dev|proc/self)/fd/\d+")


def expanded(text: str) -> Path:
    """The path, with the home folder for `~` and `~NAME`; unchanged if no user has that name."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises there


def cache_folder() -> Path:
    """Return the folder for results that can be made again; it need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or expanded("~/.cache")) / "dscampaign"


def content_of(path: Path) -> bytes:
    """Return the content of a file that a user names: a regular file, or an open one, as `/dev/stdin` and `<(...)`.

    Raises OSError for a folder, a device, or a pipe with a name, for whose writer it would wait.
    """
    if _OPEN_FILES.fullmatch(str(path)):
        return path.read_bytes()
    with open_regular(path) as file:
        return file.readall()


@contextmanager
def whole_file(path: Path, *, binary: bool = False) -> Iterator[IO[Any]]:
    """A stream whose content replaces ``path`` once the block ends; if the block raises, nothing is left.

    Until then it has an unpredictable name, so that no prepared link can lead it elsewhere. A link of the user, or of
    root, stands for its target. A pipe or a device is written to as it is.

    Raises:
        UserError: the file, or its folder, is a link that another user made.
        OSError: it cannot be written.
    """
    refuse_links_of_others(path.parent, path)
    if path.is_symlink():
        path = path.resolve()
    if path.exists() and not os.access(path, os.W_OK, effective_ids=True):  # a new name would not ask for that right
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    mode, encoding, newline = ("wb", None, None) if binary else ("w", "utf-8", "")
    if path.exists() and not path.is_file():
        with path.open(mode, encoding=encoding, newline=newline) as stream:
            yield stream
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    temporary = f".{path.name}.{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, 0o666, dir_fd=folder)
        try:
            with suppress(FileNotFoundError):  # a new file has the mode that the user's umask gives
                _keep_rights(path, descriptor)
            with os.fdopen(descriptor, mode, encoding=encoding, newline=newline) as stream:
                yield stream
                stream.flush()
                os.fsync(descriptor)
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(temporary, dir_fd=folder)
            raise
    finally:
        os.close(folder)


def _keep_rights(path: Path, descriptor: int) -> None:
    """Give an open file the owner, group and mode of the file that it replaces; if that is impossible, fewer rights."""
    info, access_list = path.stat(), None
    with suppress(OSError):  # it has none
        access_list = os.getxattr(path, ACCESS_LIST)
    mode = stat.S_IMODE(info.st_mode)
    try:
        os.fchown(descriptor, info.st_uid if os.geteuid() == 0 else -1, info.st_gid)
        if access_list:
            os.setxattr(descriptor, ACCESS_LIST, access_list)
    except OSError:
        mode &= ~stat.S_IRWXG
    os.fchmod(descriptor, mode)


def refuse_links_of_others(*places: Path) -> None:
    """Raise UserError for a link of another user, which could lead to a file of this user."""
    for place in places:
        try:
            info = place.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(info.st_mode) and info.st_uid not in (0, os.geteuid()):
            message = f"{place} is a link to {place.readlink()} that user {info.st_uid} made"
            raise UserError(message, "name another place to write to: --output PATH")


def check_folder_of(path: Path, *inputs: Path) -> None:
    """Check that a file can be created there.

    Raises UserError if it is a folder or one of the ``inputs`` that it is made from, or its own folder is missing.
    """
    if path.exists() and any(file.exists() and path.samefile(file) for file in inputs):
        raise UserError(f"{path} is an input of this command", "name another file")
    if path.is_dir():
        raise UserError(f"{path} is a folder", "name a file")
    if not path.parent.is_dir():
        raise UserError(f"no such folder: {path.parent}", f"`mkdir -p {shlex.quote(str(path.parent))}` creates it")
