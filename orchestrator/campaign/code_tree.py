"""What belongs to the code around a script: the git work tree, or the script's folder, without data. Copies nothing."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final

from dscampaign.files.atomic_files import read_json
from dscampaign.jobs.shared.code_copy import NAMING, CodeCopy, fingerprint, inner_link
from dscampaign.jobs.shared.layout import MARKER, Beside

FILE_LIMIT_BYTES: Final = 10 * 10**6
"""A larger file is data, not code."""
TREE_LIMIT_BYTES: Final = 200 * 10**6
TREE_LIMIT_FILES: Final = 20_000
"""A larger tree is not copied: then the script's own folder is, and if that is as large, nothing."""

SPEC_LIMIT_BYTES: Final = 10**6
FOLDER_LIMIT_FILES: Final = 1000
"""Outside of git, a folder below the script's with more files of its own holds data."""
GIT_TIMEOUT_S: Final = 60.0
_UNSEEN: Final = frozenset({".git", "__pycache__"})
"""Neither copied nor linked."""
_TOOLS: Final = frozenset({"node_modules", "wandb", "mlruns", "lightning_logs"})
_RESULTS: Final = frozenset({"outputs", "output", "out", "results", "multirun", "checkpoints", "artifacts", "logs"})
"""Folders that runs write, whatever the files in them are called; modules in them are code all the same."""
_ENVIRONMENT: Final = ("pyvenv.cfg", "conda-meta", Beside.STORE)
"""What only the folder of a Python environment holds, or that of a campaign."""
_OUTPUTS: Final = re.compile(
    r"\.(log|out|err|pyc|pt|pth|ckpt|safetensors|bin|np[yz]|h5|pkl|parquet|arrow|csv|tsv|jsonl"
    r"|(db|sqlite)3?(-(wal|shm|journal))?|png|jpe?g|svg|pdf|zip|tar|t?gz|zst|bak|orig|old|tmp|rej|sw[op])$|~$|tfevents|(^|/)#[^/]*#$"
)
"""How files are named that runs read and write, and those that editors keep; copied only where git keeps them."""
_IN_CAMPAIGN: Final = frozenset({MARKER, "batches", "runs", "searches", "by-hand"})
"""What a campaign's folder holds; beside it may lie code of the same name."""
_BESIDE_CAMPAIGN: Final = re.compile(
    rf"(^|/)(({Beside.CODE}|{Beside.DATA})/\.?[0-9a-f]{{16,32}}([/.]|$)|\.doctor/"
    rf"|{re.escape(Beside.SETTINGS)}$|{re.escape(Beside.STORE)}([-.]|$))"
)
"""What lies beside campaigns: copies of code, prepared data, examinations, settings and the default store."""
_OF_STORE: Final = re.compile(r"(-(wal|shm|journal|writer))?$")
"""How the files of a SQLite store end, beyond its own name."""
_TEXTS: Final = (".txt", ".html", ".htm", ".sbatch", "")
"""Suffixes of files in which people keep what a program has printed; copied where git keeps or code names them."""
_DOCUMENT: Final = re.compile(rb'\s*\{\s*"schema_version":')
"""How the JSON begins that `campaign` prints."""
_FIELD: Final = re.compile(r"""^(["']?)(\w+)\1\s*:""", re.MULTILINE)
_FIELDS_OF_SPECS: Final = ({"name"}, {"matrix", "repeats"}, {"command", "train"})
"""A spec has one of each, which hardly a configuration of a script has."""
_TELLING_FIELDS: Final = frozenset({"name", "command", "executor", "matrix", "repeats"})
"""Two of them make a file in the spec's own folder a spec: one that is being written lacks some."""
_REPORT: Final = ("report.html", "report.json", "conditions.csv")
"""What lies side by side in the folder of a report."""
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
        narrowed_from: the work tree around it, of which nothing else is copied; None where it is all.
    """

    root: Path
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    narrowed_from: Path | None = None

    def manifest(self, folder: Path) -> CodeCopy:
        """What a copy at `folder` holds, or would hold: then it is the root itself. Raises OSError."""
        reads = sorted({name for path in self.files if path.endswith(".py") for name in _names_read(folder / path)})
        prints = {path: fingerprint(folder, path) for path in self.files}
        return CodeCopy(os.fspath(self.root), prints, tuple(reads))


def tree_around(
    folder: Path, script: Path | None, dir: Path, spec: Path, reads: Collection[Path] = ()
) -> CodeTree | None:
    """The git work tree around a folder; outside of one, or where that is too large, the folder. None if it is too.

    Args:
        script: a file that belongs to it in any case.
        dir: the campaign's `dir`, which never does.
        spec: the campaign's spec, which is kept elsewhere.
        reads: files that the script is told to read: they belong to it though they look like specs of other campaigns.
    """
    root = work_tree(folder)
    listings: list[tuple[Path, Callable[[Path], _Listing | None]]] = [(root, _git_listing)] if root else []
    for top, listed in [*listings, (folder, lambda place: _walk(place, dir))]:
        always = {os.path.relpath(script, top)} if script else set()
        named = {os.path.relpath(path, top) for path in reads}
        listing = listed(top)
        if listing is None:
            continue
        listing = _without_campaigns(top, listing, always | named)
        if tree := _within_limits(top, listing, always, named, dir, spec):
            return tree if top == (root or folder) else replace(tree, narrowed_from=root)
    return None


@dataclass
class _Listing:
    """Paths below a folder: kept by git, not kept by it, and left out."""

    tracked: list[str] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def _within_limits(
    root: Path, listing: _Listing, always: set[str], named: set[str], dir: Path, spec: Path
) -> CodeTree | None:
    """What of a listing is copied; None if it is too much."""
    files, left_out, size = set(always), set(listing.left_out) - always, 0
    tracked = set(listing.tracked)
    own = _campaigns_own(dir, root)
    notes = _notes(root, listing, always | named, own)
    for path in {*tracked, *listing.untracked}:
        place = root / path
        if f"{path}/".startswith(own) or not os.path.lexists(place):
            continue
        linked = inner_link(root, path) is not None
        bytes_ = 0 if linked or not place.is_file() else place.stat().st_size
        written = path in notes or (path not in tracked and (_is_output(path) or _is_a_result(place)))
        no_code = (
            place == spec or path.endswith(_DOCUMENTS) or written or (path not in named and _is_a_spec(place, spec))
        )
        if path not in always and not linked and (no_code or bytes_ > FILE_LIMIT_BYTES or not _readable(place)):
            left_out.add(path)
            continue
        files.add(path)
        size += bytes_
        if size > TREE_LIMIT_BYTES or len(files) > TREE_LIMIT_FILES:
            return None
    hidden = {path for path in left_out if _UNSEEN.intersection(Path(path).parts) or f"{path}/".startswith(own)}
    return CodeTree(root, tuple(sorted(files)), tuple(sorted(_whole_folders(left_out - hidden, files))))


def _whole_folders(left_out: Collection[str], files: Collection[str]) -> set[str]:
    """What is left out, with a folder in place of its files where none of them is copied: new ones are found too."""
    with_code = {Path(), *(folder for path in files for folder in Path(path).parents)}
    chains = ([Path(path), *Path(path).parents] for path in left_out)
    return {os.fspath(next(place for place in reversed(chain) if place not in with_code)) for chain in chains}


def _campaigns_own(dir: Path, root: Path) -> tuple[str, ...]:
    """How paths below the root begin that are of campaigns: the `dir`, or where that is the root, what lies in it."""
    if dir.resolve() != root.resolve():
        return (f"{os.path.relpath(dir, root)}/",)
    folders = {place.parent.name for sign in ("batches", "campaign.json") for place in dir.glob(f"*/{sign}")}
    return (*(f"{name}/" for name in (Beside.CODE, *folders)), Beside.STORE, ".dscampaign", ".doctor/")


def _without_campaigns(root: Path, listing: _Listing, wanted: Collection[str]) -> _Listing:
    """The listing without what `campaign` itself keeps, for whichever campaign: also where git keeps it, it changes."""
    paths = {*listing.tracked, *listing.untracked}
    locks = (path for path in paths if path.endswith("-writer") and _is_empty(root / path))
    stores = paths.intersection(lock.removesuffix("-writer") for lock in locks)

    @cache
    def is_kept(path: str) -> bool:
        return _is_a_campaign_s(root, path) or ("/" in path and is_kept(path.rpartition("/")[0]))

    kept = {path for path in paths if _OF_STORE.sub("", path, count=1) in stores or is_kept(path)} - set(wanted)
    tracked, untracked = ([path for path in some if path not in kept] for some in (listing.tracked, listing.untracked))
    return _Listing(tracked, untracked, [*listing.left_out, *kept])


def _is_a_campaign_s(root: Path, path: str) -> bool:
    """Whether a file or folder lies in the folder of a campaign, or beside it for all of them."""
    if _BESIDE_CAMPAIGN.search(path):
        return True
    folder, name = os.path.split(path)
    return name in _IN_CAMPAIGN and {"campaign", "created_s"} <= (read_json(root / folder / MARKER) or {}).keys()


def _is_empty(place: Path) -> bool:
    return _readable(place) and place.stat().st_size == 0


def _is_output(path: str) -> bool:
    folders = Path(path).parts[:-1]
    written = not path.endswith(".py") and not _RESULTS.isdisjoint(folders)
    return written or _OUTPUTS.search(path) is not None or not _TOOLS.isdisjoint(folders)


def _is_a_spec(place: Path, spec: Path) -> bool:
    """Whether it is a spec of another campaign, by its fields: it need not be valid, nor YAML."""
    if place.suffix not in (".yaml", ".yml") or not _readable(place) or place.stat().st_size > SPEC_LIMIT_BYTES:
        return False
    fields = {name for _, name in _FIELD.findall(place.read_text(encoding="utf-8", errors="replace"))}
    beside = place.parent == spec.parent and len(fields & _TELLING_FIELDS) > 1
    return beside or all(map(fields.intersection, _FIELDS_OF_SPECS))


def _is_a_result(place: Path) -> bool:
    """Whether `campaign` wrote the file: where it is called, and that is often beside the script."""
    if place.name in _REPORT and all((place.parent / name).exists() for name in _REPORT):
        return True
    if place.suffix != ".json" or not _readable(place):
        return False
    with place.open("rb") as file:
        return _DOCUMENT.match(file.read(100)) is not None


def _notes(root: Path, listing: _Listing, named: set[str], own: tuple[str, ...]) -> set[str]:
    """Texts that nobody reads but people: git does not keep them, and no file of the code has their names."""
    texts = {path for path in listing.untracked if _is_text(Path(path))} - named
    if not texts:
        return texts
    paths = (path for path in (*listing.tracked, *listing.untracked) if path.endswith(NAMING))
    places = (root / path for path in paths if not f"{path}/".startswith(own))
    small = (place for place in places if _readable(place) and place.stat().st_size <= FILE_LIMIT_BYTES)
    said = b"\0".join(place.read_bytes() for place in small if not _is_a_result(place))
    return {path for path in texts if os.fsencode(Path(path).name) not in said}


def _is_text(path: Path) -> bool:
    return path.suffix in _TEXTS and not path.name.startswith(".")


def _readable(place: Path) -> bool:
    """Whether it is a file, not a socket or the like, and may be read: folders of several users hold others too."""
    return place.is_file() and os.access(place, os.R_OK)


# -- git ------------------------------------------------------------------------------------------------------


def work_tree(folder: Path) -> Path | None:
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
    inner = _git_listing(root / nested) if work_tree(root / nested) == root / nested else None
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
        at = "" if folder == os.fspath(root) else f"{os.path.relpath(folder, root)}/"
        if at and len(names) > FOLDER_LIMIT_FILES:
            listing.left_out.append(at.rstrip("/"))
            folders.clear()
            continue
        outside = [name for name in folders if f"{at}{name}" != own and not _is_a_campaign_s(root, f"{at}{name}")]
        kept = [name for name in outside if not _is_a_tool_s(Path(folder, name))]
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


def has_module(folder: Path, command: Sequence[str]) -> bool:
    """Whether the module that a command names lies in a folder."""
    top = command[1].split(".")[0] if len(command) > 1 else ""
    return (folder / top).is_dir() or (folder / f"{top}.py").is_file()


def _names_read(path: Path) -> Iterator[str]:
    if not path.is_symlink():
        for found in _READS.findall(path.read_text(encoding="utf-8", errors="replace")):
            yield found[0] or found[1]
