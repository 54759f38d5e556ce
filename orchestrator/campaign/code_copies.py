"""Copies the code that runs use, once per content, so that a later edit changes no run that has begun (ADR 14)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...db.records import RunRow
from ...jobs.shared.code_copy import LIVE, CodeCopy, CopyPaths, DamagedCopy, fingerprint, inner_link
from ...jobs.shared.files import make_private, sync_dir
from ...jobs.shared.layout import CODE
from ..errors import UserError
from ..executors.job_request import is_copy
from ..formatting import count, some
from ..spec.model import RunConfig

FILE_LIMIT_BYTES: Final = 10 * 10**6
"""A larger file is data, not code."""
TREE_LIMIT_BYTES: Final = 200 * 10**6
TREE_LIMIT_FILES: Final = 20_000
"""A larger tree is not copied: then the script's own folder is, and if that is as large, nothing."""

GIT_TIMEOUT_S: Final = 60.0
_NAMED: Final = 5
_UNSEEN: Final = frozenset({".git", "__pycache__"})
"""Neither copied nor linked."""
_TOOLS: Final = frozenset({"node_modules", "wandb", "mlruns"})
_ENVIRONMENT: Final = ("pyvenv.cfg", "conda-meta", "campaign.db")
"""What only the folder of a Python environment holds, or that of a campaign."""
_OUTPUTS: Final = (
    *(".log", ".out", ".err", ".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".npy", ".npz", ".parquet", ".arrow"),
    ".pyc",
)
"""How files end that runs read and write; copied only where git keeps them."""
_DOCUMENTS: Final = (".md", ".rst", ".ipynb")
"""How files end that no run depends on; like the spec they are not copied, so editing them changes no code."""
_READS: Final = re.compile(
    r"""(?:environ(?:\.get|\.pop)?\s*[\[(]|getenv\s*\()\s*["']([A-Za-z_]\w*)["']"""
    r"""|["']([A-Za-z_]\w*)["']\s+(?:not\s+)?in\s+(?:os\.)?environ"""
)


@dataclass(frozen=True)
class CodeTree:
    """A folder of code as it is now.

    Attributes:
        root: the folder.
        files: what is copied, by paths below it.
        left_out: files and whole folders that are not, by paths below it; the copy links to them.
    """

    root: Path
    files: tuple[str, ...]
    left_out: tuple[str, ...]

    def manifest(self, folder: Path) -> CodeCopy:
        """What a copy at `folder` holds, or would hold: then it is the root itself. Raises OSError."""
        reads = sorted({name for path in self.files if path.endswith(".py") for name in _names_read(folder / path)})
        prints = {path: fingerprint(folder, path) for path in self.files}
        return CodeCopy(os.fspath(self.root), prints, tuple(reads))


@dataclass(frozen=True)
class Code:
    """The code that new attempts of a run would use.

    Attributes:
        hash: of the copy; LIVE for the files as they are when an attempt starts, "" for a program that is installed.
        tree, copy: what is copied, and what the copy holds; None for nothing.
        why: why nothing is copied, "" where the spec says so.
    """

    hash: str
    tree: CodeTree | None = None
    copy: CodeCopy | None = None
    why: str = ""


@dataclass
class CodeCopies:
    """The copies below a campaign's `dir`. Each folder of scripts is looked at once, however many runs use it.

    Args:
        dir: the campaign's `dir`.
        spec: the campaign's spec.
        workdir: the folder in which attempts start.
        make: whether to copy; else this only says what would be.
    """

    dir: Path
    spec: Path
    workdir: Path
    make: bool
    _known: dict[Path, Code] = field(default_factory=dict)

    def of(self, config: RunConfig) -> Code:
        """The code of a run with this configuration.

        Raises:
            UserError: it cannot be copied.
        """
        if config.command is None:
            return Code("")
        if config.code == "live":
            return Code(LIVE)
        module = config.command[0] == "-m"
        script = self.workdir if module else Path(self.workdir, config.command[0])
        if not script.exists():
            return Code(LIVE, why=f"{script} is not seen from here")
        key = script if module else script.parent
        if key not in self._known or (not module and not self._holds(key, script)):
            self._known[key] = self._code(key, None if module else script, config.command)
        return self._known[key]

    @property
    def seen(self) -> tuple[Code, ...]:
        """All that was asked for."""
        return tuple(self._known.values())

    def _holds(self, key: Path, script: Path) -> bool:
        tree = self._known[key].tree
        return tree is None or os.path.relpath(script, tree.root) in tree.files

    def _code(self, folder: Path, script: Path | None, command: Sequence[str]) -> Code:
        if script is None and _git_root(folder) is None and not _has_module(folder, command):
            return Code("")
        try:
            tree = code_tree(folder, script, self.dir, self.spec)
            if tree is None:
                limits = f"{TREE_LIMIT_FILES:,} files or {TREE_LIMIT_BYTES // 10**6} MB"
                return Code(LIVE, why=f"{folder} holds more than {limits}")
            found = tree.manifest(tree.root)
            if self.make:
                found = _copy(tree, found, self.dir / CODE)
        except OSError as exc:
            raise UserError(f"the code in {folder} cannot be copied: {exc}", "`code: live` uses it in place") from exc
        return Code(found.hash, tree, found)


def has_code(row: RunRow) -> bool:
    """Whether a run has begun, and so keeps the code that it has."""
    return bool(row.generation and is_copy(row.code))


def describe(codes: Iterable[Code]) -> list[str]:
    """One line for each code: what is copied, what is left out, what is used in place."""
    lines = []
    for code in codes:
        if code.why:
            lines.append(f"code: used in place, not copied: {code.why}")
        elif code.tree:
            kept = f"code {code.hash}: {count(len(code.tree.files), 'file')} of {code.tree.root}"
            left = f"; left out: {shown(code.tree.left_out)}" if code.tree.left_out else ""
            lines.append(kept + left)
    return lines


def shown(paths: Sequence[str]) -> str:
    """A few paths, in any encoding."""
    return some([os.fsencode(path).decode(errors="replace") for path in paths], _NAMED)


def changed_files(older: str, code: Code, dir: Path) -> list[str]:
    """What differs between an older copy and the code; nothing where the older one cannot be read."""
    try:
        before = CopyPaths(dir / CODE / older).read().files
    except (DamagedCopy, OSError):
        return []
    now = code.copy.files if code.copy else {}
    return sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))


def code_tree(folder: Path, script: Path | None, dir: Path, spec: Path) -> CodeTree | None:
    """The git work tree around a folder; outside of one, or where that is too large, the folder. None if it is too.

    Args:
        script: a file that belongs to it in any case.
        dir: the campaign's `dir`, which never does.
        spec: the campaign's spec, which is kept elsewhere.
    """
    root = _git_root(folder)
    listings = [(root, _git_listing(root))] if root else []
    for top, listing in [*listings, (folder, _walk(folder, dir))]:
        always = {os.path.relpath(script, top)} if script else set()
        if listing is not None and (tree := _within_limits(top, listing, always, dir, spec)):
            return tree
    return None


@dataclass
class _Listing:
    """Paths below a folder: kept by git, not kept by it, and left out."""

    tracked: list[str] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def _within_limits(root: Path, listing: _Listing, always: set[str], dir: Path, spec: Path) -> CodeTree | None:
    """What of a listing is copied; None if it is too much."""
    files, left_out, size = set(always), set(listing.left_out) - always, 0
    tracked = set(listing.tracked)
    below = os.path.relpath(dir, root)
    for path in {*tracked, *listing.untracked}:
        place = root / path
        if path == below or path.startswith(f"{below}/") or not os.path.lexists(place):
            continue
        linked = inner_link(root, path) is not None
        bytes_ = 0 if linked or not place.is_file() else place.stat().st_size
        no_code = place == spec or path.endswith(_DOCUMENTS) or (path not in tracked and path.endswith(_OUTPUTS))
        if path not in always and not linked and (no_code or bytes_ > FILE_LIMIT_BYTES or not _readable(place)):
            left_out.add(path)
            continue
        files.add(path)
        size += bytes_
        if size > TREE_LIMIT_BYTES or len(files) > TREE_LIMIT_FILES:
            return None
    hidden = {path for path in left_out if _UNSEEN.intersection(Path(path).parts) or f"{path}/".startswith(f"{below}/")}
    return CodeTree(root, tuple(sorted(files)), tuple(sorted(left_out - hidden)))


def _readable(place: Path) -> bool:
    """Whether it is a file, not a socket or the like, and may be read: folders of several users hold others too."""
    return place.is_file() and os.access(place, os.R_OK)


# -- git ------------------------------------------------------------------------------------------------------


def _git_root(folder: Path) -> Path | None:
    """The work tree around a folder, spelt as the folder is; None outside of one, or without git."""
    top, up = _git(folder, "rev-parse", "--show-toplevel"), _git(folder, "rev-parse", "--show-cdup")
    if not top or up is None:
        return None
    spelt = Path(os.path.normpath(folder / up))
    return spelt if spelt.resolve() == Path(top).resolve() else Path(top)


def _git_listing(root: Path) -> _Listing | None:
    """What git lists in a work tree; None if it does not answer. Repositories within are looked into."""
    listing = _Listing()
    ignored = ("--others", "--ignored", "--exclude-standard", "--directory")
    for paths, which in (
        (listing.tracked, ("--cached",)),
        (listing.untracked, ("--others", "--exclude-standard")),
        (listing.left_out, ignored),
    ):
        said = _git(root, "ls-files", "-z", *which)
        if said is None:
            return None
        paths.extend(dict.fromkeys(path.rstrip("/") for path in said.split("\0") if path))
    for paths in (listing.tracked, listing.untracked):
        for nested in [path for path in paths if (root / path).is_dir() and not (root / path).is_symlink()]:
            paths.remove(nested)
            _add_nested(listing, paths, root, nested)
    return listing


def _add_nested(listing: _Listing, paths: list[str], root: Path, nested: str) -> None:
    """Adds what a repository in the repository lists; one that is not checked out, or none, is left out."""
    inner = _git_listing(root / nested) if _git_root(root / nested) == root / nested else None
    if inner is None:
        listing.left_out.append(nested)
        return
    paths += [f"{nested}/{path}" for path in (*inner.tracked, *inner.untracked)]
    listing.left_out += [f"{nested}/{path}" for path in inner.left_out]


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says; None if it fails, does not answer, or is not there."""
    command = ["git", "-C", os.fspath(folder), *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # as in a hook of git's
    try:
        done = subprocess.run(command, env=env, capture_output=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return os.fsdecode(done.stdout.rstrip(b"\n")) if done.returncode == 0 else None


# -- without git ----------------------------------------------------------------------------------------------


def _walk(root: Path, dir: Path) -> _Listing | None:
    """The files below a folder, but for what is hidden and what tools keep; None if they are too many."""
    listing, own = _Listing(), os.path.relpath(dir, root)
    for folder, folders, names in os.walk(root):
        below = os.path.relpath(folder, root)
        at = "" if below == os.curdir else f"{below}/"
        kept = [name for name in folders if f"{at}{name}" != own and not _is_a_tool_s(Path(folder, name))]
        listing.left_out += [f"{at}{name}" for name in folders if name not in kept]
        listing.left_out += [f"{at}{name}" for name in names if name.startswith(".")]
        listing.untracked += [f"{at}{name}" for name in names if not name.startswith(".")]
        listing.untracked += [f"{at}{name}" for name in kept if Path(folder, name).is_symlink()]
        folders[:] = kept
        if len(listing.untracked) > 5 * TREE_LIMIT_FILES:
            return None
    return listing


def _is_a_tool_s(folder: Path) -> bool:
    """Whether a folder is hidden, or kept by a tool: an environment, a cache, results."""
    named = folder.name.startswith(".") or folder.name in _UNSEEN | _TOOLS
    return named or any((folder / sign).exists() for sign in _ENVIRONMENT)


def _has_module(folder: Path, command: Sequence[str]) -> bool:
    """Whether the module that a command names lies in a folder."""
    top = command[1].split(".")[0] if len(command) > 1 else ""
    return (folder / top).is_dir() or (folder / f"{top}.py").is_file()


# -- the copy -------------------------------------------------------------------------------------------------


def _copy(tree: CodeTree, expected: CodeCopy, codes: Path) -> CodeCopy:
    """Makes the copy, unless one is there that no agent found damaged.

    First beside its place, then renamed: a half copy has no name that anybody looks for.
    """
    place = CopyPaths(codes / expected.hash)
    if place.trouble():
        make_private(codes)
        draft = codes / f".{uuid.uuid4().hex}"
        try:
            for path in tree.files:
                _copy_file(tree.root, path, draft)
            expected = tree.manifest(draft)  # of what was really copied: a file may have changed meanwhile
            place = CopyPaths(codes / expected.hash)
            if place.trouble():
                _publish(draft, expected, place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    for path in tree.left_out:
        _link(place.folder / path, tree.root / path)
    return expected


def _publish(draft: Path, manifest: CodeCopy, place: CopyPaths) -> None:
    """Gives a finished copy its name. A damaged one of that name goes; another process may have been faster."""
    manifest.write(place.manifest)
    if place.damaged.exists() and place.folder.exists():
        damaged = draft.with_name(f"{draft.name}.damaged")
        place.folder.rename(damaged)
        shutil.rmtree(damaged, ignore_errors=True)
    try:
        draft.rename(place.folder)
    except OSError:
        if not place.folder.is_dir():
            raise
    place.damaged.unlink(missing_ok=True)
    sync_dir(place.folder.parent)


def _copy_file(root: Path, path: str, draft: Path) -> None:
    source, target = root / path, draft / path
    make_private(target.parent)
    if text := inner_link(root, path):
        target.symlink_to(text)
        return
    shutil.copy2(source, target)
    target.chmod(0o500 if source.stat().st_mode & 0o100 else 0o400)


def _link(link: Path, target: Path) -> None:
    """A link in the copy to what was left out, unless it is there."""
    with suppress(FileExistsError, NotADirectoryError):
        make_private(link.parent)
        link.symlink_to(target)


def _names_read(path: Path) -> Iterator[str]:
    if not path.is_symlink():
        for found in _READS.findall(path.read_text(encoding="utf-8", errors="replace")):
            yield found[0] or found[1]
