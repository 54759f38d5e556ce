"""Checkpoints of another number of ranks, made loadable by any: DeepSpeed's universal checkpoints.

DeepSpeed cuts the optimizer's state into a shard for each rank, and loads it only into the same number. Its own tool
joins the pieces, parameter by parameter, beside the checkpoint; the result fits any number of ranks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from deepspeed import DeepSpeedEngine

from dscampaign.files import ours
from dscampaign.files.atomic_files import sync_dir
from dscampaign.files.file_systems import require_space
from dscampaign.files.private_files import make_folder
from dscampaign.jobs.shared import checkpoint, checkpoint_retention
from dscampaign.jobs.shared.variables import PER_TASK

from .config import Job

POLL_S = 0.5
ROOM = 3
"""Times the size of a checkpoint that is needed: the pieces and the whole lie side by side for a while."""


def fitting(path: Path, job: Job, tag: str) -> tuple[Path, bool]:
    """Return the checkpoint that this job's ranks can load, and whether it is a universal checkpoint.

    All ranks call it: the first converts, the others wait. A checkpoint of the same number of ranks, or without shards,
    is loadable unchanged.

    Raises:
        CheckpointError: the checkpoint is missing, or somebody else can have written the converted checkpoint.
        OSError: the disk lacks room for the conversion.
        ValueError: DeepSpeed cannot convert it.
    """
    manifest = checkpoint.read_manifest(path)
    if manifest.world_size == job.world_size or manifest.zero_stage == 0:
        return path, False
    converted = path.with_name(checkpoint_retention.UNIVERSAL + path.name)
    if job.rank == 0 and not converted.exists():
        # of an attempt that was killed: it takes the room that is asked for
        ours.remove(_draft(converted))
        require_space(path.parent, ROOM * manifest.size_bytes, "to convert a checkpoint")
        _convert(path, converted, tag)
    while not converted.exists():  # the launcher ends this rank if the one that converts fails
        time.sleep(POLL_S)
    checkpoint.require_own(converted)
    return converted, True


@contextmanager
def adam_kept(engine: DeepSpeedEngine) -> Iterator[None]:
    """Enclose the loading of a universal checkpoint with ZeRO 3, which leaves Adam in disorder (DeepSpeed 0.19.8).

    All groups of parameters get the first group's settings, among them its weight decay, and share a single count of
    steps, which then grows by the number of groups with every step.
    """
    adam = engine.optimizer.optimizer
    settings = [{name: value for name, value in group.items() if name != "params"} for group in adam.param_groups]
    yield
    for group, kept in zip(adam.param_groups, settings, strict=True):
        group.update(kept)
    for state in adam.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].clone()


def _draft(converted: Path) -> Path:
    return converted.with_name(converted.name + checkpoint.DRAFT_SUFFIX)


def _convert(path: Path, converted: Path, tag: str) -> None:
    """Run the tool in a process of its own: it forks, and needs memory that it would not give back."""
    draft = _draft(converted)
    make_folder(draft)
    restricted = [sys.executable, "-P", "-m", "dscampaign.jobs.trainer.weights_only"]
    tool = [*restricted, "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    folders = ["--input_folder", str(path / tag), "--output_folder", str(draft / tag)]
    kept = {k: v for k, v in os.environ.items() if not (PER_TASK.fullmatch(k) or k.startswith("CAMPAIGN_"))}
    env = kept | {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([*tool, *folders], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        ours.remove(draft)
        last = (done.stderr.strip().splitlines() or ["no word why"])[-1]
        raise ValueError(f"{path.name} is of another number of ranks, and DeepSpeed cannot convert it: {last}")
    checkpoint.seal(draft, (file for file in draft.rglob("*") if file.is_file()))
    draft.rename(converted)
    sync_dir(converted.parent)
