"""A copy of the code that attempts run, {dir}/code/{hash}/, with its required content in {hash}.json.

{hash}.damaged has the reason why it is not to be used any more. The hash is of the folder's path and of every file in
it: imports of a file depend on both.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dscampaign.files.ownership import distrust_tree

from .documents import Document, Unreadable

LIVE: Final = "live"  # stands for the hash where a run uses the files as they are when an attempt starts
NAMING: Final = (".py", ".sh", ".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf")
"""Suffixes of files of code that may name others, and an argument that may name a file to read."""

WRITTEN: Final = re.compile(
    r"(?!.*(conf|cfg)).*(^-o$|[-_.](out(put|file|path)?|save[ds]?|dump|write|export|results?|metrics?|report|summary|stats"
    r"|history|log(file|s)?)([-_.]|$))",
    re.IGNORECASE,
)
"""Options that name a file to be written: it must be the user's own, not the copy's."""


class DamagedCopy(Exception):
    """A copy has changed since it was made; the message has the reason."""


@dataclass(frozen=True)
class CodeCopy(Document):
    """The content of a copy."""

    root: str  # the folder that was copied
    files: Mapping[str, str]  # by path below it, the digest of each file; of a symbolic link, where it points
    reads: tuple[str, ...] = field(default=())  # names of environment variables that its Python files read

    @property
    def hash(self) -> str:
        """The identity of the copy."""
        digest = hashlib.sha256(os.fsencode(self.root))
        for path in sorted(self.files):
            digest.update(b"\0" + os.fsencode(path) + b"\0" + os.fsencode(self.files[path]))
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class CopyPaths:
    """Where a copy lies."""

    folder: Path

    @property
    def manifest(self) -> Path:
        """Its required content."""
        return self.folder.with_name(f"{self.folder.name}.json")

    @property
    def damaged(self) -> Path:
        """Why it is not to be used any more."""
        return self.folder.with_name(f"{self.folder.name}.damaged")

    def trouble(self) -> str:
        """Why the copy is not to be used, at a glance: "" if no agent marked it as damaged, and it is there."""
        with contextlib.suppress(FileNotFoundError):
            return self.damaged.read_text(errors="replace") or "damaged"
        return "" if self.folder.is_dir() and self.manifest.exists() else f"{self.folder} is gone"

    def read(self) -> CodeCopy:
        """Return the required content of the copy. Raises DamagedCopy, OSError."""
        try:
            copy = CodeCopy.load(self.manifest)
        except Unreadable as exc:
            raise DamagedCopy(str(exc)) from None
        if copy is None:
            raise FileNotFoundError(f"{self.manifest} is not there")
        if copy.hash != self.folder.name:
            raise DamagedCopy(f"{self.manifest} is that of {copy.hash}")
        return copy

    def verify(self) -> CodeCopy:
        """Read every file of the copy; return its content. Raises as `read`; also if others can have written to it."""
        copy = self.read()
        if self.folder.is_dir() and (doubt := distrust_tree(self.folder, self.folder.parent.parent)):
            raise DamagedCopy(str(doubt))  # also a file beside the others, which Python may import
        for path, expected in copy.files.items():
            try:
                now = fingerprint(self.folder, path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise DamagedCopy(f"{self.folder / path} is missing") from None
            if now != expected:
                raise DamagedCopy(f"{self.folder / path} differs from the copied code")
        return copy


def inner_link(root: Path, path: str) -> str | None:
    """Where a symbolic link points that names another place below the root; None of any other file."""
    place = root / path
    if not place.is_symlink():
        return None
    text = os.fspath(place.readlink())
    lands = os.path.normpath(os.path.join(os.path.dirname(path), text))  # noqa: PTH118, PTH120 - by its text alone
    return None if lands.startswith((os.sep, os.pardir)) else text


def fingerprint(root: Path, path: str) -> str:
    """Return the digest of a file below the root, with whether it is executable; of a link within it, its target."""
    if text := inner_link(root, path):
        return f"-> {text}"
    with (root / path).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        executable = os.fstat(file.fileno()).st_mode & 0o100
    return f"{digest}{'x' if executable else ''}"


def _counterpart(path: str, copy: CodeCopy, folder: Path) -> Path | None:
    """Return the place of `path` below the copied root in the copy at `folder`; None for other paths."""
    for name, root in ((path, copy.root), (os.path.realpath(path), os.path.realpath(copy.root))):
        below = os.path.relpath(name, root)
        if not f"{below}/".startswith("../"):
            return folder / below
    return None


def in_copy(command: Sequence[str], workdir: str, copy: CodeCopy, folder: Path) -> tuple[str, ...]:
    """A command with the copy's files in place of its inputs: the script, and files of configuration."""

    def copied(word: str, before: str, *, script: bool) -> str:
        option, equals, value = word.rpartition("=") if word.startswith("-") else ("", "", word)
        option_name = option or (before if before.startswith("-") and "=" not in before else "")
        if not (script or (value.endswith(NAMING) and not WRITTEN.match(option_name))):
            return word
        place = _counterpart(str(Path(workdir, value)), copy, folder)
        is_copied = place is not None and str(place.relative_to(folder)) in copy.files
        return f"{option}{equals}{place}" if is_copied else word

    pairs = zip(("", *command), command, strict=False)
    return tuple(copied(word, before, script=position == 0) for position, (before, word) in enumerate(pairs))


def in_copy_paths(value: str, workdir: str, copy: CodeCopy | None, folder: Path) -> str:
    """A PYTHONPATH made absolute from `workdir`, with the copy's folders in place of the originals."""

    def copied(entry: str) -> str:
        place = _counterpart(str(Path(workdir, entry)), copy, folder) if copy else None
        own = place is not None and place.is_dir() and place.resolve().is_relative_to(folder.resolve())  # not a link
        return str(place) if own else str(Path(workdir, entry))

    return os.pathsep.join(map(copied, value.split(os.pathsep))) if value else value
