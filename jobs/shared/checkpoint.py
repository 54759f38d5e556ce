"""Checkpoints that are complete or absent.

A checkpoint is a folder ``g{generation}-step{step}`` with a manifest that names every file, its size and its digest.
It is written under a temporary name; only when every byte is on disk does the first rank rename it. So a folder
without the ``.tmp`` suffix was complete once, and the manifest tells whether it still is.

    draft = begin(folder, generation, step)        # first rank; then all ranks write below `draft`
    files = seal(draft, my_files)                  # each rank: fsync and digest what it wrote
    commit(draft, manifest)                        # first rank, with the files of all
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from dscampaign.files import ours
from dscampaign.files.atomic_files import load_json, sync_dir, write_atomically
from dscampaign.files.ownership import distrust_tree
from dscampaign.files.private_files import make_folder
from dscampaign.files.regular_files import concerns_one_file

from .documents import Number, Whole, decode

FORMAT = 1
MANIFEST = "manifest.json"
DRAFT_SUFFIX = ".tmp"
AGAIN_S = 5.0
"""Between two tries to read what the file system does not let read."""
UNUSABLE = "unusable"
"""Exists beside the manifest, and says why, where a complete checkpoint could not be loaded."""

READERS = 8
"""Files that are read at the same time: hashing one takes a core, and shared storage is fast only for many."""


class CheckpointError(Exception):
    """A checkpoint cannot be used; the message says why."""


class CheckpointAway(CheckpointError):
    """The file system fails over a checkpoint that may well be whole: a stale handle, a server that is away."""


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint: size in bytes and hexadecimal BLAKE2b digest."""

    size: Whole
    digest: str


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds.

    Attributes:
        step: completed optimizer steps.
        config_hash: the experiment it belongs to; another one must never resume from it.
        world_size: data-parallel ranks; DeepSpeed loads optimizer shards only into the same number.
        generation: the attempt that wrote it.
        samples_seen: training samples consumed, over all epochs.
        files: path relative to the checkpoint -> entry.
        eval_loss: loss on held-out text in nats per token, None where it was not evaluated.
        arrangement: how the built-in trainer's state lies in it, see ``arrangement``; "" for others' scripts.
    """

    step: Whole
    config_hash: str
    world_size: Number
    zero_stage: Number
    generation: Number
    samples_seen: Whole
    files: Mapping[str, FileEntry]
    format: int = FORMAT
    eval_loss: float | None = None
    arrangement: str = ""

    @property
    def size_bytes(self) -> int:
        """What all files take together."""
        return sum(entry.size for entry in self.files.values())


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """Completed optimizer steps."""
        return self.manifest.step


def begin(folder: Path, generation: int, step: int) -> Path:
    """Creates the empty draft of a checkpoint; what an earlier try left of the same draft is removed.

    Raises FileNotFoundError without ``folder``: made anew, it would be in the place of a shared folder that is away.
    """
    draft = folder / f"g{generation:04d}-step{step:08d}{DRAFT_SUFFIX}"
    ours.remove(draft)
    make_folder(draft)
    return draft


def seal(draft: Path, files: Iterable[Path]) -> dict[str, FileEntry]:
    """Puts the files on disk and returns their manifest entries by path relative to the draft."""
    paths = list(files)
    with ThreadPoolExecutor(READERS) as pool:
        entries = pool.map(_seal_file, paths)
        return {path.relative_to(draft).as_posix(): entry for path, entry in zip(paths, entries, strict=True)}


def commit(draft: Path, manifest: Manifest) -> Checkpoint:
    """Makes the draft a checkpoint. The last step: a crash before it leaves no checkpoint, after it a complete one."""
    write_manifest(draft, manifest)
    for folder in {(draft / name).parent for name in manifest.files}:
        sync_dir(folder)
    path = draft.with_name(draft.name.removesuffix(DRAFT_SUFFIX))
    draft.rename(path)
    sync_dir(path.parent)
    return Checkpoint(path, manifest)


def verify(path: Path, *, check_digests: bool = True) -> Checkpoint:
    """Checks that a checkpoint is as complete as on the day it was written, and that nobody else can have written it.

    What lies in it may be code: DeepSpeed reads pickles.

    Args:
        path: the checkpoint's folder.
        check_digests: read every byte; without it only presence and sizes are checked.

    Raises:
        CheckpointError: it is not complete, or not only this user's; the message names the first difference.
    """
    require_own(path)
    manifest = read_manifest(path)
    with _reading(UNUSABLE):
        if (path / UNUSABLE).exists():
            raise CheckpointError(f"marked as unusable: {(path / UNUSABLE).read_text(errors='replace')}")
    for name, entry in manifest.files.items():
        _verify_size(path / name, entry)
    if check_digests:
        with ThreadPoolExecutor(READERS) as pool:
            checks = [pool.submit(_verify_digest, path / name, entry) for name, entry in manifest.files.items()]
            try:
                for check in checks:
                    check.result()
            finally:
                pool.shutdown(cancel_futures=True)  # after a first difference nobody needs the rest
    return Checkpoint(path, manifest)


def require_own(path: Path) -> None:
    """Raises CheckpointError if somebody else can have written a checkpoint's folder, anything in it or above it."""
    with _reading(path.name):
        doubt = distrust_tree(path, path.parent)
    if doubt:
        raise CheckpointError(str(doubt))


def read_manifest(path: Path) -> Manifest:
    """What a checkpoint says of itself.

    Raises:
        CheckpointError: there is no manifest that this version can read.
    """
    try:
        with _reading("unreadable manifest"):
            raw = load_json(path / MANIFEST)
        if raw is None:
            raise CheckpointError("no manifest")
        if raw.get("format") != FORMAT:
            raise CheckpointError(f"manifest format {str(raw.get('format'))[:20]}, this version reads {FORMAT}")
        manifest: Manifest = decode(Manifest, raw)
    except ValueError as error:
        raise CheckpointError(f"unreadable manifest: {error}") from None
    return manifest


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Writes what the checkpoint or draft says of itself, complete or not at all."""
    write_atomically(path / MANIFEST, json.dumps(asdict(manifest), indent=1))


def newest_verified(
    folder: Path,
    config_hash: str,
    world_size: int | None,
    *,
    zero_stage: int | None = None,
    arrangement: str | None = None,
    check_digests: bool = True,
    patience_s: float = 0.0,
    on_skip: Callable[[Path, str], None] | None = None,
) -> Checkpoint | None:
    """The newest checkpoint of the experiment that is complete and loadable, or None.

    Args:
        folder: the run's checkpoint folder; may be missing.
        config_hash: the experiment that resumes.
        world_size: its number of ranks; None where those of any number can be loaded.
        zero_stage: its ZeRO stage, which may have been raised to save memory; None where that does not matter.
        arrangement: how its state lies, which a change to save memory may have altered; None where that is unknown.
        check_digests: read every byte of the one that is returned; sizes are always checked.
        patience_s: how long to try again where the file system fails, before what it does not let read is passed over.
        on_skip: called with path and reason for every newer checkpoint that was passed over.
    """

    def usable(path: Path) -> Checkpoint:
        found = verify(path, check_digests=False)
        _require_match(found.manifest, config_hash, world_size)
        if zero_stage is not None and _shards(found.manifest.zero_stage) != _shards(zero_stage):
            raise CheckpointError(f"written with ZeRO stage {found.manifest.zero_stage}, not {zero_stage}")
        if arrangement is not None and found.manifest.arrangement != arrangement:
            written = found.manifest.arrangement or "by an earlier version"
            raise CheckpointError(f"its state is laid out otherwise ({written}, not {arrangement})")
        return verify(path) if check_digests else found

    until_s = time.monotonic() + patience_s
    for path in newest_first(folder):
        while True:
            try:
                return usable(path)
            except CheckpointError as error:
                if isinstance(error, CheckpointAway) and time.monotonic() < until_s:
                    time.sleep(AGAIN_S)
                    continue
                if on_skip:
                    on_skip(path, str(error))
                break
    return None


def newest_first(folder: Path) -> list[Path]:
    """The folders of all checkpoints, whole or not; the furthest step is the newest, whoever wrote it."""
    found = (path for path in folder.glob("g*-step*") if not path.name.endswith(DRAFT_SUFFIX))
    folders = (path for path in found if not _is_no_folder(path))
    return sorted(folders, key=lambda path: position(path.name), reverse=True)


def _is_no_folder(path: Path) -> bool:
    """Whether it is something else for certain."""
    try:
        return not path.is_dir()
    except OSError:
        return False


def position(name: str) -> tuple[int, int]:
    """(step, generation) from the name of a checkpoint's or draft's folder; (-1, -1) if it is another's."""
    try:
        generation, step = name.removesuffix(DRAFT_SUFFIX).removeprefix("g").split("-step")
        return int(step), int(generation)
    except ValueError:
        return -1, -1


def _seal_file(path: Path) -> FileEntry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "blake2b").hexdigest()
        os.fsync(file.fileno())
        return FileEntry(os.fstat(file.fileno()).st_size, digest)


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Raises what the file system says as a CheckpointError that names what was read."""
    try:
        yield
    except OSError as error:
        its_own = isinstance(error, FileNotFoundError) or concerns_one_file(error)
        raise (CheckpointError if its_own else CheckpointAway)(f"{what}: {error.strerror or error}") from None


def _verify_size(path: Path, entry: FileEntry) -> None:
    with _reading(path.name):
        size = path.stat().st_size
    if size != entry.size:
        raise CheckpointError(f"{path.name}: {size} bytes, {entry.size} in the manifest")


def _verify_digest(path: Path, entry: FileEntry) -> None:
    with _reading(path.name), path.open("rb") as file:
        digest = hashlib.file_digest(file, "blake2b").hexdigest()
    if digest != entry.digest:
        raise CheckpointError(f"{path.name}: content differs from the manifest")


def _shards(zero_stage: int) -> int:
    """Equal for stages that load each other's checkpoints."""
    return 1 if zero_stage == 2 else zero_stage


def _require_match(manifest: Manifest, config_hash: str, world_size: int | None) -> None:
    if manifest.config_hash != config_hash:
        raise CheckpointError(f"of another experiment ({manifest.config_hash}, not {config_hash})")
    if world_size is not None and manifest.world_size != world_size:
        written = f"written by {manifest.world_size} ranks, not {world_size}"
        raise CheckpointError(f"{written}; only a run with train.universal_checkpoint resumes from it")
