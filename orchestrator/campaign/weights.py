"""A run's weights in the format of Transformers: out of which checkpoint, and written by the trainer's own code."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from dscampaign.db import queries
from dscampaign.db.records import CampaignRow, CheckpointRow, RunRow
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
from dscampaign.orchestrator.output_files import refuse_links_of_others
from dscampaign.orchestrator.reconcile.campaign_folder import CampaignFolder
from dscampaign.orchestrator.reconcile.origin import Origin
from dscampaign.orchestrator.spec.model import RunConfig

_WRITER: Final = ("-P", "-m", "dscampaign.jobs.trainer.transformers_folder")
_ENVIRONMENT: Final = {
    "DS_ACCELERATOR": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 20),  # else glibc keeps the memory of each weight that was read, up to all
}
_SHOWN: Final = 6
"""Steps that a hint names."""


@dataclass(frozen=True)
class WeightsChoice:
    """Which weights to write: those of a step, those of the lowest held-out loss, else the newest.

    Attributes:
        dtype: their number format, ``bf16``, ``fp16`` or ``fp32``; None for that in which the run kept them.
    """

    step: int | None = None
    best: bool = False
    dtype: str | None = None


@dataclass(frozen=True)
class WeightsPlan:
    """What is written, from where, and by which Python.

    Attributes:
        train: the fields of train.json, for one rank: how the run was split does not matter.
        python: the run's own; this program's own for a campaign of somebody else.
        workdir: where its attempts start, which names of local files are relative to; "" if unknown or not own.
        passed_over: checkpoints that are not complete, or not to be trusted, each with why.
    """

    campaign: str
    run: str
    source: Checkpoint
    dtype: str
    train: dict[str, Any]
    python: str
    workdir: str
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True)
class WrittenWeights:
    """What was written.

    Attributes:
        eval_loss: of that checkpoint on held-out text, in nats per token; None where it was not evaluated.
        model: the class that Transformers loads it with.
        tokenizer: what the run called it.
        files: names of all files.
    """

    campaign: str
    run: str
    step: int
    checkpoint: str
    eval_loss: float | None
    out: str
    dtype: str
    model: str
    parameters: int
    tokenizer: str
    files: tuple[str, ...]
    size_bytes: int

    @property
    def document(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def plan_weights(store: Store, campaign: CampaignRow, run: RunRow, wanted: WeightsChoice) -> WeightsPlan:
    """Finds the checkpoint; reads manifests alone.

    Raises:
        UserError: there is none, or none that this can read.
        Unreachable: the campaign's folder is away.
    """
    config = run_config(run)
    refuse_unreadable(run.name, config)
    with store.read() as conn:
        recorded = queries.checkpoints(conn, run.id)
        CampaignFolder(campaign).require(queries.attempts(conn, campaign.id, run.id))
    folder = CampaignPaths(Path(campaign.dir), campaign.name).run(run.name).checkpoints(run.config_hash)
    complete, unfit = _complete(folder)
    if unfit and not complete:
        raise UserError(f"run {run.name} has no checkpoint that can be read. {unfit[0]}")
    origin, own = Origin.of(campaign.provenance), _is_own(store, campaign)
    one_rank = {"sequence_parallel": 1, "tensor_parallel": 1}
    alone = config.model_copy(update={"train": config.train.model_copy(update=one_rank)})
    return WeightsPlan(
        campaign=campaign.name,
        run=run.name,
        source=choose(run.name, config, wanted, complete, recorded),
        dtype=wanted.dtype or kept_in(config),
        train=alone.train_json(micro_batch=config.train.global_batch, accumulation=1, world_size=1),
        python=(own and shutil.which(config.python or origin.interpreter)) or sys.executable,
        workdir=origin.workdir if own else "",
        passed_over=unfit,
    )


def _is_own(store: Store, campaign: CampaignRow) -> bool:
    """Whether a campaign is this user's own: what somebody else has recorded is never run."""
    user = campaign.provenance.get("user")
    return store.is_writable and (store.is_sqlite or user == user_name(os.geteuid()))


def refuse_unreadable(run: str, config: RunConfig) -> None:
    """Raises UserError for a run whose checkpoints are its script's own, or that writes none."""
    if config.command is not None:
        hint = "only runs of the built-in trainer, which have no `command` in the spec, can be written"
        raise UserError(f"run {run} has its own command, whose checkpoints only that can read", hint)
    if config.train.offload == "nvme":
        hint = "train it with offload full, or with ZeRO 3 on more GPUs"
        raise UserError(
            f"run {run} has no checkpoints: DeepSpeed saves no states that lie on a disk (offload nvme)", hint
        )


def kept_in(config: RunConfig) -> str:
    """The number format that a run keeps its weights in: PyTorch's own engines compute only from copies in half."""
    precision = config.train.precision if config.train.engine == "deepspeed" else "fp32"
    return "fp32" if precision == "tf32" else precision


def choose(
    run: str,
    config: RunConfig,
    wanted: WeightsChoice,
    complete: Sequence[Checkpoint],
    recorded: Sequence[CheckpointRow],
) -> Checkpoint:
    """The checkpoint to read. Pure.

    Args:
        run: its name.
        config: says how often it saves, and how many stay.
        wanted: what the user asks for.
        complete: checkpoints on the shared folder, newest first.
        recorded: those that the store has ever seen.

    Raises:
        UserError: there is none.
    """
    if not complete:
        raise _without_any(run, config, recorded)
    steps = some([f"{found.step:,}" for found in complete], _SHOWN)
    if wanted.step is not None:
        if found := next((found for found in complete if found.step == wanted.step), None):
            return found
        if any(row.step == wanted.step for row in recorded):
            kept = f"train.keep_checkpoints: {config.train.keep_checkpoints}"
            raise UserError(
                f"the checkpoint of step {wanted.step:,} of run {run} was removed ({kept})", f"left: {steps}"
            )
        raise UserError(f"run {run} has no checkpoint of step {wanted.step:,}", f"one of: {steps}")
    if wanted.best:
        rated = [found for found in complete if found.manifest.eval_loss is not None]
        if not rated:
            hint = "set train.eval_every to a step at which it also saves, or leave --best out"
            raise UserError(f"no checkpoint of run {run} was evaluated on held-out text", hint)
        return min(rated, key=lambda found: found.manifest.eval_loss or 0.0)
    return complete[0]


def write_weights(plan: WeightsPlan, out: Path) -> WrittenWeights:
    """Reads the whole checkpoint and writes the folder ``out``, which then holds all or is as it was.

    Raises:
        UserError: ``out`` is in use, the checkpoint is damaged, or the trainer's code says why it cannot.
    """
    require_free(out)
    draft = out.parent / f".{out.name}.{os.urandom(8).hex()}"
    try:
        draft.mkdir()
    except OSError as error:  # before much is read
        raise UserError(f"cannot write to {out.parent}: {error.strerror}", "name a folder elsewhere") from None
    try:
        answer = _read_and_written(plan, draft)
        files = sorted(draft.iterdir())
        for file in files:
            file.chmod(draft.stat().st_mode & 0o666)  # not all writers ask what new files are to be
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        size_bytes = sum(file.stat().st_size for file in files)
        draft.rename(out)  # takes the place of an empty folder, and of no other
        sync_dir(out.parent)
    finally:
        ours.remove(draft)
    manifest = plan.source.manifest
    return WrittenWeights(
        campaign=plan.campaign,
        run=plan.run,
        step=plan.source.step,
        checkpoint=str(plan.source.path),
        eval_loss=manifest.eval_loss,
        out=str(out),
        dtype=plan.dtype,
        files=tuple(file.name for file in files),
        size_bytes=size_bytes,
        **answer,
    )


def _read_and_written(plan: WeightsPlan, draft: Path) -> dict[str, Any]:
    """Has a sound checkpoint written into ``draft``; returns what the trainer's code says of it."""
    try:
        checkpoint.verify(plan.source.path)
        return _written(plan, draft)
    except (CheckpointError, UserError) as error:
        _require_kept(plan)
        if isinstance(error, UserError):
            raise
        what = f"the checkpoint of step {plan.source.step:,} of run {plan.run} is damaged: {error}"
        raise UserError(what, "--step names an older checkpoint") from None


def _require_kept(plan: WeightsPlan) -> None:
    """Raises UserError if the checkpoint is no longer there: its run saves on, and keeps only the newest."""
    if not plan.source.path.exists():
        hint = "run the command again for the newest one, or raise train.keep_checkpoints"
        raise UserError(
            f"the checkpoint of step {plan.source.step:,} of run {plan.run} was removed while it was read", hint
        )


def require_free(out: Path) -> None:
    """Raises UserError unless ``out`` can become a new folder."""
    refuse_links_of_others(out.parent, out)
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UserError(f"{out} is no folder", "name one that does not exist yet")
    if out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out} is not empty", "name a folder that does not exist yet")
    if not out.parent.is_dir():
        raise UserError(f"no such folder: {out.parent}", f"`mkdir -p {shlex.quote(str(out.parent))}` creates it")


def _complete(folder: Path) -> tuple[list[Checkpoint], tuple[str, ...]]:
    """The complete checkpoints, newest first, and of each other one why it is none."""
    found, unfit = [], []
    for path in checkpoint.newest_first(folder):
        try:
            found.append(checkpoint.verify(path, check_digests=False))
        except CheckpointError as error:
            unfit.append(f"{path.name}: {error}")
    return found, tuple(unfit)


def _without_any(run: str, config: RunConfig, recorded: Sequence[CheckpointRow]) -> UserError:
    every = config.train.checkpoint_every
    if recorded:
        newest = max(recorded, key=lambda row: (row.step, row.generation))
        hint = f"the newest was that of step {newest.step:,}, {newest.path}"
        return UserError(f"run {run} has no complete checkpoint any more", hint)
    if every is None:
        hint = "with train.checkpoint_every in the spec, a run saves every so many steps and at its end"
        return UserError(f"run {run} saved no checkpoint", hint)
    return UserError(f"run {run} has no checkpoint yet", f"the first is due at step {every:,} (train.checkpoint_every)")


def _written(plan: WeightsPlan, draft: Path) -> dict[str, Any]:
    """Has the trainer's code write into ``draft``, on the CPU alone; returns what it says of it."""
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
    last = next(reversed(done.stderr.strip().splitlines()), f"the writer ended with exit code {done.returncode}")
    what = f"the weights of run {plan.run} cannot be written"
    if "ModuleNotFoundError" in last:
        hint = f"this needs the training stack on this machine: `{plan.python} -m pip install 'dscampaign[train]'`"
        return UserError(f"{what}: {last.partition(': ')[2]}", hint)
    if done.returncode < 0:
        return UserError(f"{what}: the system ended the writer by signal {-done.returncode}", "is there enough memory?")
    return UserError(f"{what}: {last}")
