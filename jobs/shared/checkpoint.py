"""Checkpoints that are complete or absent.

A checkpoint is a folder ``g{generation}-step{step}`` with a manifest that names every file, its size and its digest.
All ranks write below the draft of `begin`, `seal` syncs their files, and `commit` renames it once every byte is on
disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from dscampaign.files import ours
from dscampaign.files.atomic_files import load_json, sync_dir, write_atomically
from dscampaign.files.ownership import distrust_tree
from dscampaign.files.private_files import concerns_one_file, make_folder

from .documents import Number, Whole, decode

FORMAT = 1
MANIFEST = "manifest.json"
DRAFT_SUFFIX = ".tmp"
AGAIN_S = 5.0  # between two tries to read a file that the file system does not let read
UNUSABLE = "unusable"  # exists beside the manifest, with the reason, if a complete checkpoint could not be loaded
READERS = 8
"""Files that are read at the same time: hashing a file takes a core, and shared storage is fast only for many."""


class CheckpointError(Exception):
    """A checkpoint cannot be used; the message has the reason."""


class CheckpointAway(CheckpointError):
    """The file system fails over a checkpoint that may well be whole: a stale handle, a server that is away."""


@dataclass(frozen=True)
class FileEntry:
    """A file of a checkpoint: size in bytes and hexadecimal BLAKE2b digest."""

    size: Whole
    digest: str


@dataclass(frozen=True)
class Manifest:
    """The content of a checkpoint."""

    step: Whole  # completed optimizer steps
    config_hash: str  # the experiment it belongs to; no other may resume from it
    world_size: Number  # data-parallel ranks; DeepSpeed loads optimizer shards only into the same number
    zero_stage: Number
    generation: Number  # the attempt that wrote it
    samples_seen: Whole  # training samples consumed, over all epochs
    files: Mapping[str, FileEntry]  # path relative to the checkpoint -> entry
    format: int = FORMAT
    eval_loss: float | None = None  # loss on held-out text in nats per token, None if it was not evaluated
    arrangement: str = ""  # how the built-in trainer's state lies in it, see ``arrangement``; "" for others' scripts

    @property
    def size_bytes(self) -> int:
        """Return the size of all files together."""
        return sum(entry.size for entry in self.files.values())


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """Return its completed optimizer steps."""
        return self.manifest.step


def begin(folder: Path, generation: int, step: int) -> Path:
    """Create the empty draft of a checkpoint; remove leftovers of an earlier try.

    Raises FileNotFoundError without ``folder``: made anew, it would hide a shared folder that is away.
    """
    draft = folder / f"g{generation:04d}-step{step:08d}{DRAFT_SUFFIX}"
    ours.remove(draft)
    make_folder(draft)
    return draft


def seal(draft: Path, files: Iterable[Path]) -> dict[str, FileEntry]:
    """Sync the files to disk and return their manifest entries by path relative to the draft."""
    paths = list(files)
    with ThreadPoolExecutor(READERS) as pool:
        entries = pool.map(_seal_file, paths)
        return {path.relative_to(draft).as_posix(): entry for path, entry in zip(paths, entries, strict=True)}


def commit(draft: Path, manifest: Manifest) -> Checkpoint:
    """Make the draft a checkpoint. The last step: a crash before it leaves no checkpoint."""
    write_manifest(draft, manifest)
    for folder in {(draft / name).parent for name in manifest.files}:
        sync_dir(folder)
    path = draft.with_name(draft.name.removesuffix(DRAFT_SUFFIX))
    draft.rename(path)
    sync_dir(path.parent)
    return Checkpoint(path, manifest)


def verify(path: Path, *, check_digests: bool = True) -> Checkpoint:
    """Check that a checkpoint is complete and unchanged, by all bytes or by sizes only.

    Raises CheckpointError, with the first difference, also if another user can have written it: DeepSpeed reads
    pickles.
    """
    with _reading(path.name):
        doubt = distrust_tree(path, path.parent)
    if doubt:
        raise CheckpointError(str(doubt))
    manifest = read_manifest(path)
    with _reading(UNUSABLE):
        if (path / UNUSABLE).exists():
            raise CheckpointError(f"marked as unusable: {(path / UNUSABLE).read_text(errors='replace')}")
    for name, entry in manifest.files.items():
        with _reading((path / name).name):
            size = (path / name).stat().st_size
        if size != entry.size:
            raise CheckpointError(f"{(path / name).name}: {size} bytes, {entry.size} in the manifest")
    if check_digests:
        with ThreadPoolExecutor(READERS) as pool:
            checks = [pool.submit(_verify_digest, path / name, entry) for name, entry in manifest.files.items()]
            try:
                for check in checks:
                    check.result()
            finally:
                pool.shutdown(cancel_futures=True)  # after a first difference nobody needs the rest
    return Checkpoint(path, manifest)


def read_manifest(path: Path) -> Manifest:
    """Return a checkpoint's manifest. Raises CheckpointError: there is no manifest that this version can read."""
    try:
        with _reading("unreadable manifest"):
            raw = load_json(path / MANIFEST)
        if raw is None:
            raise CheckpointError("no manifest")
        if raw.get("format") != FORMAT:
            raise CheckpointError(f"manifest format {str(raw.get('format'))[:20]}, this version reads {FORMAT}")
        return decode(Manifest, raw)
    except ValueError as error:
        raise CheckpointError(f"unreadable manifest: {error}") from None


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest of a checkpoint or draft, complete or not at all."""
    write_atomically(path / MANIFEST, json.dumps(asdict(manifest), indent=1))


def newest_verified(
    folder: Path,
    config_hash: str,
    world_size: int,
    *,
    zero_stage: int | None = None,
    arrangement: str | None = None,
    check_digests: bool = True,
    patience_s: float = 0.0,
    on_skip: Callable[[Path, str], None] | None = None,
) -> Checkpoint | None:
    """Return the newest checkpoint of the experiment that is complete and loadable, or None.

    Args:
        zero_stage: its ZeRO stage, which may have been raised to save memory; None if that does not matter.
        arrangement: layout of its state, which a change to save memory may have altered; None if unknown.
        check_digests: read every byte of the returned checkpoint; sizes are always checked.
        patience_s: how long to try again if the file system fails, before a checkpoint is skipped.
        on_skip: called with path and reason for every newer checkpoint that was skipped.
    """
    until_s = time.monotonic() + patience_s
    for path in newest_first(folder):
        while True:
            try:
                whole = verify(path, check_digests=False)
                _require_match(whole.manifest, config_hash, world_size, zero_stage, arrangement)
                return verify(path) if check_digests else whole
            except CheckpointError as error:
                if isinstance(error, CheckpointAway) and time.monotonic() < until_s:
                    time.sleep(AGAIN_S)
                    continue
                if on_skip:
                    on_skip(path, str(error))
                break
    return None


def _require_match(
    manifest: Manifest, config_hash: str, world_size: int, zero_stage: int | None, arrangement: str | None
) -> None:
    if manifest.config_hash != config_hash:
        raise CheckpointError(f"of another experiment ({manifest.config_hash}, not {config_hash})")
    if manifest.world_size != world_size:
        raise CheckpointError(f"written by {manifest.world_size} ranks, not {world_size}")
    stages = {manifest.zero_stage, zero_stage}
    if zero_stage is not None and len(stages) > 1 and stages != {1, 2}:  # these load each other's checkpoints
        raise CheckpointError(f"written with ZeRO stage {manifest.zero_stage}, not {zero_stage}")
    if arrangement is not None and manifest.arrangement != arrangement:
        written = manifest.arrangement or "by an earlier version"
        raise CheckpointError(f"its state is laid out otherwise ({written}, not {arrangement})")


def newest_first(folder: Path) -> list[Path]:
    """Return the folders of all checkpoints, whole or not; the furthest step is the newest."""
    folders = []
    for path in folder.glob("g*-step*"):
        with suppress(OSError):
            if path.name.endswith(DRAFT_SUFFIX) or not path.is_dir():
                continue
        folders.append(path)
    return sorted(folders, key=lambda path: position(path.name), reverse=True)


def position(name: str) -> tuple[int, int]:
    """Return (step, generation) from the name of a checkpoint's or draft's folder; (-1, -1) of any other."""
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
def _reading(subject: str) -> Iterator[None]:
    """Raise an error of the file system as a CheckpointError that names the file."""
    try:
        yield
    except OSError as error:
        its_own = isinstance(error, FileNotFoundError) or concerns_one_file(error)
        raise (CheckpointError if its_own else CheckpointAway)(f"{subject}: {error.strerror or error}") from None


def _verify_digest(path: Path, entry: FileEntry) -> None:
    with _reading(path.name), path.open("rb") as file:
        digest = hashlib.file_digest(file, "blake2b").hexdigest()
    if digest != entry.digest:
        raise CheckpointError(f"{path.name}: content differs from the manifest")
