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
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .files import sync_dir, write_atomically

FORMAT = 1
MANIFEST = "manifest.json"
DRAFT_SUFFIX = ".tmp"


class CheckpointError(Exception):
    """A checkpoint cannot be used; the message says why."""


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint: size in bytes and hexadecimal BLAKE2b digest."""

    size: int
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
    """

    step: int
    config_hash: str
    world_size: int
    zero_stage: int
    generation: int
    samples_seen: int
    files: Mapping[str, FileEntry]
    format: int = FORMAT


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """Completed optimizer steps."""
        return self.manifest.step

    @property
    def generation(self) -> int:
        """The attempt that wrote it."""
        return self.manifest.generation

    @property
    def samples_seen(self) -> int:
        """Training samples consumed."""
        return self.manifest.samples_seen


def begin(folder: Path, generation: int, step: int) -> Path:
    """Creates the empty draft of a checkpoint; what an earlier try left of the same draft is removed."""
    draft = folder / f"g{generation:04d}-step{step:08d}{DRAFT_SUFFIX}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    return draft


def seal(draft: Path, files: Iterable[Path]) -> dict[str, FileEntry]:
    """Puts the files on disk and returns their manifest entries by path relative to the draft."""
    return {path.relative_to(draft).as_posix(): _seal_file(path) for path in files}


def commit(draft: Path, manifest: Manifest) -> Checkpoint:
    """Makes the draft a checkpoint. The last step: a crash before it leaves no checkpoint, after it a complete one."""
    write_atomically(draft / MANIFEST, json.dumps(asdict(manifest), indent=1))
    for folder in {(draft / name).parent for name in manifest.files}:
        sync_dir(folder)
    path = draft.with_name(draft.name.removesuffix(DRAFT_SUFFIX))
    draft.rename(path)
    sync_dir(path.parent)
    return Checkpoint(path, manifest)


def verify(path: Path, *, check_digests: bool = True) -> Checkpoint:
    """Checks that a checkpoint is as complete as on the day it was written.

    Args:
        path: the checkpoint's folder.
        check_digests: read every byte; without it only presence and sizes are checked.

    Raises:
        CheckpointError: it is not complete; the message names the first difference.
    """
    manifest = _read_manifest(path)
    for name, entry in manifest.files.items():
        _verify_file(path / name, entry, check_digests)
    return Checkpoint(path, manifest)


def newest_verified(
    folder: Path,
    config_hash: str,
    world_size: int,
    *,
    check_digests: bool = True,
    on_skip: Callable[[Path, str], None] | None = None,
) -> Checkpoint | None:
    """The newest checkpoint of the experiment that is complete and loadable, or None.

    Args:
        folder: the run's checkpoint folder; may be missing.
        config_hash: the experiment that resumes.
        world_size: its number of ranks.
        check_digests: read every byte of the one that is returned; sizes are always checked.
        on_skip: called with path and reason for every newer checkpoint that was passed over.
    """
    for path in _newest_first(folder):
        try:
            found = verify(path, check_digests=False)
            _require_match(found.manifest, config_hash, world_size)
            return verify(path) if check_digests else found
        except CheckpointError as error:
            if on_skip:
                on_skip(path, str(error))
    return None


def prune(folder: Path, keep: int, step: int) -> list[Path]:
    """Removes all but the newest ``keep`` checkpoints up to ``step`` (at least one stays) and returns what went.

    Those that are further ahead were no good to this attempt, or it would have begun there: they must not outlive one
    that is.
    """
    reached = [path for path in _newest_first(folder) if _position(path.name)[0] <= step]
    old = reached[max(keep, 1) :]
    for path in old:
        _remove(path)
    return old


def remove_drafts(folder: Path, before_generation: int) -> None:
    """Removes what earlier attempts left half written."""
    for draft in folder.glob(f"g*-step*{DRAFT_SUFFIX}"):
        if _position(draft.name)[1] < before_generation:
            shutil.rmtree(draft, ignore_errors=True)


def _seal_file(path: Path) -> FileEntry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "blake2b").hexdigest()
        os.fsync(file.fileno())
        return FileEntry(os.fstat(file.fileno()).st_size, digest)


def _read_manifest(path: Path) -> Manifest:
    try:
        raw = json.loads((path / MANIFEST).read_text())
        if raw["format"] != FORMAT:
            raise CheckpointError(f"manifest format {raw['format']}, this version reads {FORMAT}")
        files = {name: FileEntry(**entry) for name, entry in raw.pop("files").items()}
        return Manifest(files=files, **raw)
    except FileNotFoundError:
        raise CheckpointError("no manifest") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"unreadable manifest: {error}") from None


def _verify_file(path: Path, entry: FileEntry, check_digest: bool) -> None:
    try:
        if (size := path.stat().st_size) != entry.size:
            raise CheckpointError(f"{path.name}: {size} bytes, {entry.size} in the manifest")
        if check_digest:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "blake2b").hexdigest() != entry.digest:
                    raise CheckpointError(f"{path.name}: content differs from the manifest")
    except OSError as error:
        raise CheckpointError(f"{path.name}: {error.strerror}") from None


def _require_match(manifest: Manifest, config_hash: str, world_size: int) -> None:
    if manifest.config_hash != config_hash:
        raise CheckpointError(f"of another experiment ({manifest.config_hash}, not {config_hash})")
    if manifest.world_size != world_size:
        raise CheckpointError(f"written by {manifest.world_size} ranks, not {world_size}")


def _newest_first(folder: Path) -> list[Path]:
    found = (path for path in folder.glob("g*-step*") if not path.name.endswith(DRAFT_SUFFIX))
    return sorted((path for path in found if path.is_dir()), key=lambda path: _position(path.name), reverse=True)


def _position(name: str) -> tuple[int, int]:
    """(step, generation) from a folder's name; the furthest step is the newest, whoever wrote it."""
    try:
        generation, step = name.removesuffix(DRAFT_SUFFIX).removeprefix("g").split("-step")
        return int(step), int(generation)
    except ValueError:
        return -1, -1


def _remove(path: Path) -> None:
    """Under a draft's name first: an interrupted removal must not look like a checkpoint."""
    draft = path.with_name(path.name + DRAFT_SUFFIX)
    path.rename(draft)
    shutil.rmtree(draft, ignore_errors=True)
