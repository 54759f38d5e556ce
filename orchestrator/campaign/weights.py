"""Writes the weights of a checkpoint in the format of Transformers, by the trainer's own code."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from dscampaign.db.records import CampaignRow, RunRow
from dscampaign.db.store import Store
from dscampaign.files import ours
from dscampaign.files.atomic_files import sync_dir
from dscampaign.files.ownership import user_name
from dscampaign.jobs.shared import checkpoint
from dscampaign.jobs.shared.checkpoint import Checkpoint, CheckpointError
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.jobs.shared.variables import inheritable
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.executors.job_request import run_config
from dscampaign.orchestrator.formatting import some
from dscampaign.orchestrator.reconcile.campaign_folder import CampaignFolder
from dscampaign.orchestrator.reconcile.origin import Origin
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.orchestrator.user_files import refuse_links_of_others

_WRITER: Final = ("-P", "-m", "dscampaign.jobs.trainer.transformers_folder")
_ENVIRONMENT: Final = {
    "DS_ACCELERATOR": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 20),  # else glibc keeps the memory of each weight that was read, up to all
}


@dataclass(frozen=True)
class WeightsPlan:
    """A checkpoint to write, and the Python that writes it."""

    run: str
    source: Checkpoint
    dtype: str
    train: dict[str, Any]  # the fields of train.json, for a rank: how the run was split does not matter
    python: str  # the run's own; this program's own for a campaign of another user
    workdir: str  # the folder that names of local files are relative to; "" if unknown or of another user


class WrittenWeights(NamedTuple):
    """The class that Transformers loads the weights with, their number and size, and the tokenizer in the spec."""

    model: str
    parameters: int
    tokenizer: str
    size_bytes: int


def plan_weights(
    store: Store,
    campaign: CampaignRow,
    run: RunRow,
    *,
    step: int | None = None,
    best: bool = False,
    dtype: str | None = None,
) -> WeightsPlan:
    """Select the checkpoint: of a step, of the lowest held-out loss, else the newest; reads manifests alone.

    `dtype`: ``bf16``, ``fp16`` or ``fp32``, by default as the run kept its weights. Raises UserError if there is none
    that this can read.
    """
    config = run_config(run)
    if config.command is not None:
        hint = "only runs of the built-in trainer, which have no `command` in the spec, can be written"
        raise UserError(f"run {run.name} has its own command: only that command can read its checkpoints", hint)
    CampaignFolder(campaign).require()
    folder = CampaignPaths(Path(campaign.dir), campaign.name).run(run.name).checkpoints(run.config_hash)
    complete, unfit = list[Checkpoint](), ""
    for path in checkpoint.newest_first(folder):
        try:
            complete.append(checkpoint.verify(path, check_digests=False))
        except CheckpointError as error:
            unfit = unfit or f"{path.name}: {error}"
    if unfit and not complete:
        raise UserError(f"run {run.name} has no checkpoint that can be read. {unfit}")
    origin, user = Origin.of(campaign.provenance), campaign.provenance.get("user")
    # programs that another user has recorded are never run
    own = store.is_writable and (store.is_sqlite or user == user_name(os.geteuid()))
    one_rank = {"sequence_parallel": 1, "tensor_parallel": 1}
    alone = config.model_copy(update={"train": config.train.model_copy(update=one_rank)})
    return WeightsPlan(
        run=run.name,
        source=choose(run.name, config, complete, step=step, best=best),
        dtype=dtype or kept_in(config),
        train=alone.train_json(micro_batch=config.train.global_batch, accumulation=1, world_size=1),
        python=(own and shutil.which(config.python or origin.interpreter)) or sys.executable,
        workdir=origin.workdir if own else "",
    )


def kept_in(config: RunConfig) -> str:
    """Return the number format of a run's weights: PyTorch's own engines compute only from copies in half precision."""
    precision = config.train.precision if config.train.engine == "deepspeed" else "fp32"
    return "fp32" if precision == "tf32" else precision


def choose(
    run: str, config: RunConfig, complete: Sequence[Checkpoint], *, step: int | None = None, best: bool = False
) -> Checkpoint:
    """Select the checkpoint to read, of complete ones, newest first; raises UserError if there is none. Pure."""
    if not complete:
        hint = "with train.checkpoint_every in the spec, a run saves every so many steps and at its end"
        raise UserError(f"run {run} has no complete checkpoint", hint)
    if step is not None:
        if checkpoint := next((checkpoint for checkpoint in complete if checkpoint.step == step), None):
            return checkpoint
        steps = some([f"{checkpoint.step:,}" for checkpoint in complete])
        hint = f"one of: {steps} (train.keep_checkpoints: {config.train.keep_checkpoints})"
        raise UserError(f"run {run} has no checkpoint of step {step:,}", hint)
    if not best:
        return complete[0]
    rated = [checkpoint for checkpoint in complete if checkpoint.manifest.eval_loss is not None]
    if not rated:
        hint = "set train.eval_every to a step at which it also saves, or leave --best out"
        raise UserError(f"no checkpoint of run {run} was evaluated on held-out text", hint)
    return min(rated, key=lambda checkpoint: checkpoint.manifest.eval_loss or 0.0)


def write_weights(plan: WeightsPlan, out: Path) -> WrittenWeights:
    """Read the checkpoint and write the folder ``out``, which then holds all or is as it was; raises UserError."""
    require_free(out)
    draft = out.parent / f".{out.name}.{os.urandom(8).hex()}"
    try:
        draft.mkdir()
    except OSError as error:  # before much is read
        raise UserError(f"cannot write to {out.parent}: {error.strerror}", "name a folder elsewhere") from None
    try:
        checkpoint.verify(plan.source.path)
        answer = _written(plan, draft)
        files = sorted(draft.iterdir())
        for file in files:
            file.chmod(draft.stat().st_mode & 0o666)  # not all writers ask for the modes of new files
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        size_bytes = sum(file.stat().st_size for file in files)
        draft.rename(out)  # takes the place of an empty folder, and of no other
        sync_dir(out.parent)
    except CheckpointError as error:
        subject = f"the checkpoint of step {plan.source.step:,} of run {plan.run} is damaged, or was removed meanwhile"
        raise UserError(f"{subject}: {error}", "run the command again, or choose another with --step") from None
    finally:
        ours.remove(draft)
    return WrittenWeights(size_bytes=size_bytes, **answer)


def require_free(out: Path) -> None:
    """Raise UserError unless ``out`` can become a new folder."""
    refuse_links_of_others(out.parent, out)
    if os.path.lexists(out) and (out.is_symlink() or not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is not an empty folder", "name a folder that does not exist yet")
    if not out.parent.is_dir():
        raise UserError(f"no such folder: {out.parent}", f"`mkdir -p {shlex.quote(str(out.parent))}` creates it")


def _written(plan: WeightsPlan, draft: Path) -> dict[str, Any]:
    """Run the trainer's code, on the CPU alone; return its description of the files."""
    request = {"checkpoint": str(plan.source.path), "train": plan.train, "out": str(draft), "dtype": plan.dtype}
    done = subprocess.run(
        [plan.python, *_WRITER],
        input=json.dumps(request),
        env=inheritable(os.environ) | _ENVIRONMENT,
        cwd=plan.workdir if plan.workdir and Path(plan.workdir).is_dir() else None,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise _failure(plan, done)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _failure(plan: WeightsPlan, done: subprocess.CompletedProcess[str]) -> UserError:
    *_, last = f"the writer ended with exit code {done.returncode}", *done.stderr.strip().splitlines()
    hint = ""
    if "ModuleNotFoundError" in last:
        hint = f"this needs the training stack on this machine: `{plan.python} -m pip install 'dscampaign[train]'`"
    if done.returncode < 0:
        last, hint = f"signal {-done.returncode} ended the writer", "is there enough memory?"
    return UserError(f"the weights of run {plan.run} cannot be written: {last}", hint or None)
