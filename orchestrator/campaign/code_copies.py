"""Copies the code that runs use, once per content, so that a later edit changes no run that has begun (ADR 14)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePath
from typing import Final

from dscampaign.db.records import RunRow
from dscampaign.files import ours
from dscampaign.files.atomic_files import read_json, sync_dir
from dscampaign.files.ownership import Distrusted, distrust, planted
from dscampaign.files.private_files import make_private
from dscampaign.jobs.shared.checkpoint_retention import DEEPSPEED_SCRIPTS
from dscampaign.jobs.shared.code_copy import LIVE, NAMING, CodeCopy, CopyPaths, fingerprint, inner_link
from dscampaign.jobs.shared.layout import MARKER, Beside
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.executors.job_request import is_copy
from dscampaign.orchestrator.formatting import count, some
from dscampaign.orchestrator.spec.model import RunConfig


@dataclass(frozen=True)
class Code:
    """The code that new attempts of a run would use."""

    hash: str  # of the copy; LIVE for the files as they are when an attempt starts, "" for an installed program
    # tree, copy: the files to copy, and the content of the copy; None for nothing
    tree: CodeTree | None = None
    copy: CodeCopy | None = None
    why: str = ""  # the reason why nothing is copied, "" if the spec asks for it

    @property
    def note(self) -> str:
        """A line on its files, files that are left out, or why it is used in place; "" for nothing."""
        if self.why or not self.tree:
            return f"code: used in place, not copied: {self.why}" if self.why else ""
        kept = f"code: copy of {self.tree.root}, {count(len(self.tree.files), 'file')}, hash {self.hash}"
        paths = [os.fsencode(path).decode(errors="replace") for path in self.tree.left_out]
        return f"{kept}; left out: {some(paths, 5)}" if paths else kept


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
            # nobody else may write a file of the tree, which any other may import
            inside = (tree.root / above for path in tree.files for above in (PurePath(path), *PurePath(path).parents))
            for place in sorted({tree.root, *inside}):
                _refuse(distrust(place) if place == tree.root or place.is_symlink() else planted(place))
            manifest = tree.manifest(tree.root)
            if self.make:
                manifest = _copy(tree, manifest, self.dir / Beside.CODE)
        except OSError as exc:
            hint = "set `code: live` to use it in place"
            raise UserError(f"the code in {folder} cannot be copied: {exc}", hint) from exc
        return Code(manifest.hash, tree, manifest)


def _refuse(doubt: Distrusted | None) -> None:
    if doubt:
        raise UserError(f"{doubt}, so they could run any code as you", doubt.hint)


def has_code(row: RunRow) -> bool:
    """Return whether a run has begun, and so keeps its code."""
    return bool(row.generation and is_copy(row.code))


def _copy(tree: CodeTree, expected: CodeCopy, codes: Path) -> CodeCopy:
    """First beside its place, then renamed: a half copy has no name that anybody looks for."""
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
        # It stays under another name: scripts may have written into it.
        place.folder.rename(place.folder.with_name(f"{place.folder.name}{draft.name}"))
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


FILE_LIMIT_BYTES: Final = 10 * 10**6  # a larger file is data, not code
TREE_LIMIT_BYTES: Final = 200 * 10**6
TREE_LIMIT_FILES: Final = 20_000  # a larger tree is used in place
GIT_TIMEOUT_S: Final = 60.0

_CODE: Final = (*NAMING, ".pyi", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")
"""How files of code end; git may track others as well."""
_DOCUMENTS: Final = (".md", ".rst", ".ipynb")
"""How files end that no run depends on: to edit them is no change of code, even if git tracks them."""
_UNSEEN: Final = frozenset({".git", "__pycache__"})  # neither copied nor linked
_TOOLS: Final = frozenset({"node_modules", "wandb", "mlruns", "lightning_logs", "torch_compile_debug"}) | frozenset(
    {"autotuning_results", "autotuning_exps", "unsloth_compiled_cache"}
)
_RESULTS: Final = frozenset({"outputs", "output", "out", "results", "multirun", "checkpoints", "artifacts", "logs"})
"""Folders that runs write to; modules in them are code all the same."""
_WEIGHTS: Final = (".safetensors", ".bin", ".index.json")
"""How files end that make a folder with a `config.json` a model: Transformers saves `modeling_*.py` beside them."""
_ENVIRONMENT: Final = ("pyvenv.cfg", "conda-meta", Beside.STORE)
"""Only the folder of a Python environment, or of a campaign, holds these."""
_IN_CAMPAIGN: Final = frozenset({MARKER, "batches", "runs", "searches", "by-hand"})
"""The content of a campaign's folder; code of the same name may lie beside it."""
_BESIDE_CAMPAIGN: Final = re.compile(
    rf"(^|/)(({Beside.CODE}|{Beside.DATA})/\.?[0-9a-f]{{16,32}}([/.]|$)|\.doctor/"
    rf"|{re.escape(Beside.SETTINGS)}$|{re.escape(Beside.STORE)}([-.]|$))"
)
"""Copies of code, prepared data, settings and the default store, which lie beside campaigns."""
_UNDECODED: Final = re.compile("[\udc80-\udcff]")  # bytes of a name that is not UTF-8: a manifest cannot hold it
_PRINTED: Final = re.compile(rb'\s*\{\s*"schema_version":')  # how the JSON begins that `campaign` prints
_FIELD: Final = re.compile(r"""^(["']?)(\w+)\1\s*:""", re.MULTILINE)
_FIELDS_OF_SPECS: Final = frozenset({"name", "command", "executor", "matrix", "repeats"})
"""Two of them make a YAML file a spec, also while it is being written."""
_READS: Final = re.compile(
    r"""(?:environ(?:\.get|\.pop)?\s*[\[(]|getenv\s*\()\s*["']([A-Za-z_]\w*)["']"""
    r"""|["']([A-Za-z_]\w*)["']\s+(?:not\s+)?in\s+(?:os\.)?environ"""
)


@dataclass(frozen=True)
class CodeTree:
    """A folder of code as it is now."""

    root: Path
    files: tuple[str, ...]  # paths below it to copy
    left_out: tuple[str, ...]  # paths of other files and whole folders below it; the copy links to them

    def manifest(self, folder: Path) -> CodeCopy:
        """Return the content of a copy at `folder`, or of a new copy if that is the root. Raises OSError."""
        scripts = (folder / path for path in self.files if path.endswith(".py"))
        texts = (path.read_text(encoding="utf-8", errors="replace") for path in scripts if not path.is_symlink())
        reads = sorted({match[0] or match[1] for text in texts for match in _READS.findall(text)})
        prints = {path: fingerprint(folder, path) for path in self.files}
        return CodeCopy(os.fspath(self.root), prints, tuple(reads))


def tree_around(
    folder: Path, script: Path | None, dir: Path, spec: Path, reads: Collection[Path] = ()
) -> CodeTree | None:
    """Return the git work tree around a folder, or else the folder; None if it is too large.

    `script` belongs to it in any case, the campaign's `dir` and its `spec` never. Files that the script `reads` belong
    to it even if they look like specs.
    """
    root = work_tree(folder)
    top, listing = (root, _git_listing(root)) if root else (folder, _walk(folder, dir))
    if listing is None:
        return None
    tracked, untracked = set(listing[0]), listing[1]
    files = {_below(script, top)} if script else set[str]()
    paths = {os.path.relpath(path, top) for path in reads}
    own = Beside.CODE if dir.resolve() == top.resolve() else os.path.relpath(dir, top)
    models = {os.path.dirname(path) for path in untracked if path.endswith(_WEIGHTS)} - {""}  # noqa: PTH120

    @cache
    def is_campaign_s(path: str) -> bool:
        return _is_a_campaign_s(top, path) or ("/" in path and is_campaign_s(path.rpartition("/")[0]))

    def is_code(path: str) -> bool:
        place = top / path
        if inner_link(top, path) is not None:
            return place.exists() and not is_campaign_s(path)
        # folders of several users hold files that may not be read
        if place == spec or path.endswith(_DOCUMENTS) or not (place.is_file() and os.access(place, os.R_OK)):
            return False
        if place.stat().st_size > FILE_LIMIT_BYTES or is_campaign_s(path) or (path not in paths and _is_a_spec(place)):
            return False
        of_model = os.path.dirname(path) in models and (place.parent / "config.json").exists()  # noqa: PTH120
        return path in tracked or not (of_model or not _is_named_like_code(path) or _is_printed(place))

    size = 0
    for path in {path for path in (*tracked, *untracked) if not _UNDECODED.search(path)} - files:
        if not f"{path}/".startswith(f"{own}/") and os.path.lexists(top / path) and is_code(path):
            files.add(path)
            size += (top / path).stat().st_size if (top / path).is_file() else 0
        if size > TREE_LIMIT_BYTES or len(files) > TREE_LIMIT_FILES:
            return None
    return CodeTree(top, tuple(sorted(files)), tuple(sorted(_beside(files, top) - {own})))


def _below(script: Path, root: Path) -> str:
    """Return the path of a script from the root of its tree, also if a link led to it."""
    by_name = os.path.relpath(script, root)
    behind_link = script.parent.resolve() / script.name
    return by_name if by_name[:2] != ".." else os.path.relpath(behind_link, root.resolve())


def _beside(files: set[str], root: Path) -> set[str]:
    """Return the other files, and the folders without any of these: links then lead to new files too."""
    folders = {PurePath(), *(above for path in files for above in PurePath(path).parents)}
    names = ((above, place.name) for above in folders for place in (root / above).iterdir())
    beside = {os.fspath(above / name) for above, name in names if name not in _UNSEEN}
    return beside - files - {os.fspath(above) for above in folders}


def _is_a_campaign_s(root: Path, path: str) -> bool:
    """Return whether a file or folder lies in the folder of any campaign, or beside it: it changes with each run."""
    if _BESIDE_CAMPAIGN.search(path):
        return True
    folder, name = os.path.split(path)
    return name in _IN_CAMPAIGN and {"campaign", "created_s"} <= (read_json(root / folder / MARKER) or {}).keys()


def _is_named_like_code(path: str) -> bool:
    folders = PurePath(path).parts[:-1]
    is_result = not _TOOLS.isdisjoint(folders) or (not path.endswith(".py") and not _RESULTS.isdisjoint(folders))
    is_result |= PurePath(path).name in DEEPSPEED_SCRIPTS
    return path.endswith(_CODE) and not is_result and not f"/{path}".count("/.")


def _is_a_spec(place: Path) -> bool:
    if place.suffix not in (".yaml", ".yml"):
        return False
    fields = {name for _, name in _FIELD.findall(place.read_text(encoding="utf-8", errors="replace"))}
    return len(fields & _FIELDS_OF_SPECS) > 1


def _is_printed(place: Path) -> bool:
    """Return whether `campaign` printed the file: users keep its output beside the script."""
    if place.suffix != ".json":
        return False
    with place.open("rb") as file:
        return _PRINTED.match(file.read(100)) is not None


# -- git ------------------------------------------------------------------------------------------------------


def work_tree(folder: Path) -> Path | None:
    """Return the work tree around a folder, spelt as the folder is; None if there is no work tree or no git."""
    top, up = git(folder, "rev-parse", "--show-toplevel"), git(folder, "rev-parse", "--show-cdup")
    if not top or up is None:
        return None
    spelt = Path(os.path.normpath(folder / up))
    return spelt if spelt.resolve() == Path(top).resolve() else Path(top)


def _git_listing(root: Path) -> tuple[list[str], list[str]] | None:
    """Return the paths below a work tree that git tracks, and others that it does not ignore, also of inner trees."""
    listing = []
    for options in (("--cached",), ("--others", "--exclude-standard")):
        if (output := git(root, "ls-files", "-z", *options)) is None:
            return None
        paths = list(dict.fromkeys(path.rstrip("/") for path in output.split("\0") if path))
        for nested in [path for path in paths if (root / path).is_dir() and not (root / path).is_symlink()]:
            paths.remove(nested)
            inner = _git_listing(root / nested) if work_tree(root / nested) == root / nested else None
            paths += [f"{nested}/{path}" for own in inner or () for path in own]
        listing.append(paths)
    return listing[0], listing[1]


def git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a command of git in a folder; None if it fails."""
    command = ["git", "-C", os.fspath(folder), *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # as in a hook of git's
    try:
        done = subprocess.run(command, env=env, capture_output=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return os.fsdecode(done.stdout.rstrip(b"\n")) if done.returncode == 0 else None


# -- without git ----------------------------------------------------------------------------------------------


def _walk(root: Path, dir: Path) -> tuple[list[str], list[str]] | None:
    """Return no path that git tracks, and all others, except in folders of campaigns and of tools."""
    paths, own = list[str](), os.path.relpath(dir, root)
    for folder, folders, names in os.walk(root):
        at = "" if folder == os.fspath(root) else f"{os.path.relpath(folder, root)}/"
        outside = [name for name in folders if f"{at}{name}" != own and not _is_a_campaign_s(root, f"{at}{name}")]
        by_name = (name for name in outside if not name.startswith(".") and name not in _UNSEEN | _TOOLS)
        folders[:] = [name for name in by_name if not any(Path(folder, name, sign).exists() for sign in _ENVIRONMENT)]
        paths += [f"{at}{name}" for name in (*names, *(name for name in folders if Path(folder, name).is_symlink()))]
        if len(paths) > 5 * TREE_LIMIT_FILES:
            return None
    return [], paths


def has_module(folder: Path, command: Sequence[str]) -> bool:
    """Return whether the module that a command names lies in a folder."""
    top = command[1].split(".")[0] if len(command) > 1 else ""
    return (folder / top).is_dir() or (folder / f"{top}.py").is_file()
