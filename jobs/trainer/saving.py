"""A run's state into checkpoints and out of them. All ranks do it together."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from zipfile import BadZipFile

import torch.distributed as dist
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from torch import serialization

from dscampaign.files.file_systems import try_writing
from dscampaign.jobs import report
from dscampaign.jobs.shared import checkpoint, checkpoint_retention
from dscampaign.jobs.shared.checkpoint import CheckpointError, FileEntry
from dscampaign.jobs.shared.state_layout import arrangement

from .config import Job, TrainerConfig
from .engine import Engine

TAG = "deepspeed"

_CAREFUL = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_SAVED = (DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address)
"""Classes of plain values in DeepSpeed's checkpoints."""

_SHARD = re.compile(r"(?:zero_pp|fsdp)_rank_(\d+)_")
_LAYER_PART = re.compile(r"mp_rank_(\d+)_")
_WRITING_FAILED = re.compile(r"PytorchStreamWriter|inline_container|basic_ios|iostream", re.IGNORECASE)


def save(engine: Engine, config: TrainerConfig, job: Job, step: int, reported: dict[str, float]) -> None:
    """Write the checkpoint of ``step``, complete or not at all. All ranks call it. Raises OSError."""
    _require_room(job)
    draft = job.checkpoint_dir / f"g{job.generation:04d}-step{step:08d}{checkpoint.DRAFT_SUFFIX}"
    try:
        files = _write(engine, job, draft, step, reported, config.tensor_parallel)
        if job.rank == 0:
            _commit(draft, files, config, job, step)
    except Exception as error:
        reason = _reason(draft, error)
        # This rank's files alone, and at once: a full disk cannot take the records of the end. A rank that still writes
        # would report a missing folder as the cause. The agent removes the rest.
        with suppress(OSError):
            for file in _written_by(job.rank, config.tensor_parallel, draft):
                file.unlink(missing_ok=True)
        if reason is error:
            raise
        raise reason from error
    dist.barrier()


def restore(engine: Engine, job: Job) -> tuple[int, dict[str, float], bool]:
    """Load the checkpoint to resume; return its step, the step's reported metrics, and whether it was evaluated.

    All ranks call it. Raises CheckpointError: it is incomplete or damaged; later attempts skip a damaged checkpoint,
    and try others again after any other error of DeepSpeed.
    """
    if job.resume is None:
        return 0, {}, False
    manifest = checkpoint.verify(job.resume, check_digests=False).manifest
    try:
        with weights_only():
            loaded, client_state = engine.load_checkpoint(str(job.resume), tag=TAG)
        if loaded is None:
            raise RuntimeError(f"DeepSpeed found nothing to load in {job.resume}")
    except Exception as error:
        if not _damaged(job.resume, manifest, error):
            raise
        reason = f"{type(error).__name__}: {error}"
        checkpoint_retention.mark_unusable(job.resume, reason)
        later = "later attempts begin at the checkpoint before it"
        raise CheckpointError(f"{job.resume} cannot be loaded, {later}: {reason}") from error
    return manifest.step, client_state.get("reported", {}), manifest.eval_loss is not None


@contextmanager
def weights_only() -> Iterator[None]:
    """Make `torch.load` read tensors, plain values and classes that DeepSpeed saves, for any arguments.

    A pickle may call anything. PyTorch has a reader that refuses to, but DeepSpeed (0.19.8) names the other reader.
    """
    before = os.environ.get(_CAREFUL)
    os.environ[_CAREFUL] = "1"
    try:
        with serialization.safe_globals([*_SAVED]):
            yield
    finally:
        del os.environ[_CAREFUL]
        os.environ |= {} if before is None else {_CAREFUL: before}


def _require_room(job: Job) -> None:
    """Check the room on the first rank; all ranks raise together, so that no rank waits for another."""
    problem = [""]
    if job.rank == 0:
        try:
            checkpoint_retention.require_room(job.checkpoint_dir, job.generation)
        except OSError as error:
            problem = [error.strerror or str(error)]
    dist.broadcast_object_list(problem)
    if problem[0]:
        raise OSError(errno.ENOSPC, problem[0], str(job.checkpoint_dir))


def _write(
    engine: Engine, job: Job, draft: Path, step: int, reported: dict[str, float], parts: int
) -> dict[str, FileEntry]:
    if job.rank == 0:
        checkpoint.begin(job.checkpoint_dir, job.generation, step)
    dist.barrier()
    engine.save_checkpoint(str(draft), tag=TAG, client_state={"reported": reported}, save_latest=False)
    dist.barrier()
    mine = checkpoint.seal(draft, _written_by(job.rank, parts, draft))
    of_ranks: list[dict[str, FileEntry]] = [{} for _ in range(job.world_size)]
    dist.all_gather_object(of_ranks, mine)
    return {name: entry for entries in of_ranks for name, entry in entries.items()}


def _written_by(rank: int, parts: int, draft: Path) -> list[Path]:
    """Return the files of a draft that this rank wrote: shards with its number, and on the first rank all others.

    If ``parts`` ranks share layers, a name has the shard's number among the ranks with the same part.
    """
    written = []
    for file in (draft / TAG).iterdir():
        shard, part = (int(match[1]) if (match := words.search(file.name)) else 0 for words in (_SHARD, _LAYER_PART))
        written += [file] if rank == shard * parts + part else []
    return written


def _commit(draft: Path, files: dict[str, FileEntry], config: TrainerConfig, job: Job, step: int) -> None:
    report.sync()  # the metrics first: a run that resumes here never reports these steps again
    manifest = checkpoint.Manifest(
        step=step,
        config_hash=job.config_hash,
        world_size=job.world_size,
        zero_stage=config.zero_stage,
        generation=job.generation,
        samples_seen=step * config.global_batch,
        files=files,
        arrangement=arrangement(asdict(config)),
    )
    saved = checkpoint.commit(draft, manifest)
    checkpoint_retention.prune(job.checkpoint_dir, config.keep_checkpoints, step, keep_best=config.keep_best)
    report.event("checkpoint", step=step, path=str(saved.path), size_bytes=manifest.size_bytes)


def _reason(draft: Path, error: Exception) -> Exception:
    if isinstance(error, OSError) or not _WRITING_FAILED.search(str(error)):
        return error
    try:
        try_writing(draft.parent)
    except OSError as reason:
        return OSError(reason.errno, f"{reason.strerror} for a checkpoint: {error}", str(draft))
    return OSError(errno.EIO, f"the checkpoint could not be written: {error}", str(draft))


def _damaged(path: Path, manifest: checkpoint.Manifest, error: Exception) -> bool:
    """Return whether a checkpoint is proven to be damaged. Other errors may come from the environment or the code.

    Digests were compared before the attempt began; the next attempt skips a checkpoint that differs in them.
    """
    if isinstance(error, BadZipFile | EOFError) or "PytorchStreamReader failed" in str(error):
        return True
    for name, entry in manifest.files.items():
        try:
            if (path / name).stat().st_size != entry.size:
                return True
        except FileNotFoundError:
            return True
        except OSError:  # the file system's
            continue
    return False
