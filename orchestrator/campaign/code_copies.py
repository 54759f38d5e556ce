"""Copies the code that runs use, once per content, so that a later edit changes no run that has begun (ADR 14)."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from dscampaign.db.records import RunRow
from dscampaign.files import ours
from dscampaign.files.atomic_files import sync_dir
from dscampaign.files.ownership import Distrusted, distrust, planted
from dscampaign.files.private_files import make_private
from dscampaign.jobs.shared.code_copy import LIVE, CodeCopy, CopyPaths, inner_link
from dscampaign.jobs.shared.layout import Beside
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.executors.job_request import is_copy
from dscampaign.orchestrator.formatting import count, some
from dscampaign.orchestrator.spec.model import RunConfig

from .code_tree import TREE_LIMIT_BYTES, TREE_LIMIT_FILES, CodeTree, has_module, tree_around, work_tree

_PATHS = 5  # paths that a line names


@dataclass(frozen=True)
class Code:
    """The code that new attempts of a run would use."""

    hash: str  # of the copy; LIVE for the files as they are when an attempt starts, "" for an installed program
    # tree, copy: the files to copy, and the content of the copy; None for nothing
    tree: CodeTree | None = None
    copy: CodeCopy | None = None
    why: str = ""  # the reason why nothing is copied, "" if the spec asks for it


@dataclass
class CodeCopies:
    """The copies of code below a campaign's `dir`, for attempts that start in `workdir`; without `make`, only looks."""

    dir: Path
    spec: Path
    workdir: Path
    make: bool
    _known: dict[tuple[str, ...], Code] = field(default_factory=dict)

    def of(self, config: RunConfig) -> Code:
        """Return the code of a run. Raises UserError if it cannot be copied, or others may write it."""
        if config.command is None:
            return Code("")
        live, module = config.code == "live", config.command[0] == "-m"
        key = tuple(config.command[: 2 if module else 1])
        if not live and key in self._known:
            return self._known[key]
        script = self.workdir if module else Path(self.workdir, config.command[0])
        if script.exists():
            _refuse(distrust(script))
        if live or not script.exists():
            return Code(LIVE, why="" if live else f"{script} cannot be read from this machine")
        code = self._code(script if module else script.parent, None if module else script, config)
        return self._known.setdefault(key, code)

    @property
    def seen(self) -> tuple[Code, ...]:
        """All codes that `of` returned."""
        return tuple(self._known.values())

    def _code(self, folder: Path, script: Path | None, config: RunConfig) -> Code:
        command: Sequence[str] = config.command or ()
        if script is None and work_tree(folder) is None and not has_module(folder, command):
            return Code("")
        try:
            words = (word.rpartition("=")[2] for word in (*command, *config.env.values()))
            files = [Path(self.workdir, word) for word in words]
            tree = tree_around(folder, script, self.dir, self.spec, files)
            if tree is None:
                limits = f"{TREE_LIMIT_FILES:,} files or {TREE_LIMIT_BYTES // 10**6} MB"
                return Code(LIVE, why=f"the tree around {folder} holds more than {limits}")
            _require_trust_in(tree)
            manifest = tree.manifest(tree.root)
            if self.make:
                manifest = _copy(tree, manifest, self.dir / Beside.CODE)
        except OSError as exc:
            raise UserError(
                f"the code in {folder} cannot be copied: {exc}", "set `code: live` to use it in place"
            ) from exc
        return Code(manifest.hash, tree, manifest)


def _require_trust_in(tree: CodeTree) -> None:
    """Make sure that nobody else can write a file of the tree, which any other may import."""
    places = {
        tree.root,
        *(tree.root / above for path in tree.files for above in (PurePath(path), *PurePath(path).parents)),
    }
    for place in sorted(places):
        _refuse(distrust(place) if place == tree.root or place.is_symlink() else planted(place))


def _refuse(doubt: Distrusted | None) -> None:
    if doubt:
        raise UserError(f"{doubt}, so they could run any code as you", doubt.hint)


def has_code(row: RunRow) -> bool:
    """Return whether a run has begun, and so keeps its code."""
    return bool(row.generation and is_copy(row.code))


def _copy(tree: CodeTree, expected: CodeCopy, codes: Path) -> CodeCopy:
    """First beside its place, then renamed: a half copy has no name that anybody looks for."""
    place = CopyPaths(codes / expected.hash)
    with suppress(FileNotFoundError):
        os.utime(place.manifest)  # in use from now on, though no run says so yet: `garbage` looks at its age
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
            ours.remove(draft)
    for path in tree.left_out:
        link = place.folder / path
        with suppress(FileExistsError, NotADirectoryError):
            make_private(link.parent)
            link.symlink_to(tree.root / path)
    return expected


def _publish(draft: Path, manifest: CodeCopy, place: CopyPaths) -> None:
    """Give a finished copy its name in place of a damaged one; another process may have been faster."""
    manifest.write(place.manifest)
    if place.damaged.exists() and place.folder.exists():
        damaged = draft.with_name(f"{draft.name}.damaged")
        place.folder.rename(damaged)
        ours.remove(damaged)
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


def describe(codes: Iterable[Code]) -> list[str]:
    """Return one line for each code: its files, those that are left out, or why it is used in place."""
    lines = []
    for code in codes:
        if code.why:
            lines.append(f"code: used in place, not copied: {code.why}")
        elif code.tree:
            kept = f"code: copy of {code.tree.root}, {count(len(code.tree.files), 'file')}, hash {code.hash}"
            paths = [os.fsencode(path).decode(errors="replace") for path in code.tree.left_out]
            lines.append(f"{kept}; left out: {some(paths, _PATHS)}" if paths else kept)
    return list(dict.fromkeys(lines))  # scripts in several folders of a work tree share its copy
