"""The Hugging Face Trainer as a campaign: ``Trainer(..., callbacks=[CampaignCallback()])`` is all that it takes.

Alone loads transformers. Outside of a campaign the callback does nothing.
"""

from __future__ import annotations

import math
import os
import re
import time
from pathlib import Path
from typing import Any, Final

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from .files.atomic_files import read_json
from .jobs.report import event, phase, report, should_stop, sync

_CHECKPOINT: Final = re.compile(r"checkpoint-(\d+)")
_NAMES: Final = {"learning_rate": "lr"}
_PLACE: Final = ("step", "ts")
"""Of a line itself: what a script logs by these names says nothing more."""
_MEMORY_STEPS: Final = 3
"""Steps of a training after which its peak of memory is known."""


def last_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """The newest complete checkpoint in a Trainer's ``output_dir``, as ``resume_from_checkpoint`` takes it; or None.

    A save that was killed leaves a folder in which each further attempt would fail. The Trainer writes its own state
    last (`Trainer._save_checkpoint`, as of transformers 5), so without that a checkpoint is not complete.
    """
    numbered = ((_CHECKPOINT.fullmatch(path.name), path) for path in Path(folder).glob("checkpoint-*"))
    found = {int(match[1]): path for match, path in numbered if match and read_json(path / TRAINER_STATE_NAME)}
    return str(found[max(found)]) if found else None


class CampaignCallback(TrainerCallback):  # type: ignore[misc]
    """Reports metrics, phases, memory and checkpoints; on a request to stop, lets the Trainer save and leave.

    A run resumes only if the script lets it: save below ``CAMPAIGN_CHECKPOINT_DIR``, and pass what `last_checkpoint`
    finds there to ``Trainer.train``.
    """

    def __init__(self) -> None:
        self._active = bool(os.environ.get("CAMPAIGN_METRICS_FILE"))
        self._clock_s: float | None = None
        self._tokens = self._first_step = 0

    def on_train_begin(self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        """The first step connects, allocates and compiles."""
        self._tokens, self._first_step, self._clock_s = state.num_input_tokens_seen, state.global_step, None
        event("target", steps=state.max_steps)
        phase("compile")

    def on_step_begin(self, *_args: Any, **_: Any) -> None:
        """Starts the clock, unless the step before has."""
        self._clock_s = self._clock_s or time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Reports the step's time, says what follows it, and asks all ranks whether to stop."""
        if not self._active:
            return
        report(state.global_step, **self._pace(state.num_input_tokens_seen))
        if _max_over_ranks(args.device, float(should_stop()))[0]:  # exit code 0 before the last step: it resumes later
            control.should_save = control.should_training_stop = True
        if state.global_step == self._first_step + _MEMORY_STEPS:
            _report_memory(args.device)
        _enter("eval" if control.should_evaluate else "checkpoint" if control.should_save else "train")

    def on_log(
        self, args: TrainingArguments, state: TrainerState, _control: TrainerControl, logs: dict[str, Any], **_: Any
    ) -> None:
        """Reports all numbers that the Trainer logs, on every rank: only the first one's are kept."""
        if self._active and state.global_step:
            numbers = {name: value for name, value in logs.items() if name not in _PLACE and _is_number(value)}
            renamed = {_NAMES.get(name, name): value for name, value in numbers.items()}
            if "loss" in renamed and not _scales_loss(args) and not math.isfinite(float(renamed.get("grad_norm", 0.0))):
                renamed["loss"] = math.nan  # the Trainer leaves a loss that is none out of its mean, by default
            report(state.global_step, **{**renamed, **_peaks(args.device)})

    def on_prediction_step(self, *_args: Any, **_: Any) -> None:
        """Some of an evaluation, which may have been asked for by the script itself."""
        phase("eval")
        self._clock_s = None

    def on_evaluate(self, _args: TrainingArguments, _state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The Trainer saves after it has evaluated."""
        self._clock_s = None
        _enter("checkpoint" if control.should_save else "train")

    def on_save(self, args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        """Announces a checkpoint."""
        self._clock_s = None
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}").absolute()
        if self._active and state.is_world_process_zero and folder.is_dir():
            size_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            event("checkpoint", step=state.global_step, path=str(folder), size_bytes=size_bytes)
        _enter("train")

    def on_train_end(self, *_args: Any, **_: Any) -> None:
        """What the script does now is its own."""
        phase("end")

    def _pace(self, tokens: int) -> dict[str, float]:
        """The step's time, evaluation and checkpoints left out; the Trainer itself waits for each step's loss."""
        now_s, begin_s, before = time.perf_counter(), self._clock_s, self._tokens
        self._clock_s, self._tokens = now_s, tokens
        if begin_s is None:
            return {}
        step_s = now_s - begin_s
        return {"step_time": step_s, **({"tokens_per_s": (tokens - before) / step_s} if tokens > before else {})}


def _is_number(value: object) -> bool:
    return value.numel() == 1 if isinstance(value, torch.Tensor) else isinstance(value, int | float)


def _scales_loss(args: TrainingArguments) -> bool:
    """Whether steps with a gradient that is not finite are skipped: without that, the weights are lost by one."""
    return bool(args.fp16) or os.environ.get("ACCELERATE_MIXED_PRECISION") == "fp16"


def _enter(name: str) -> None:
    if name == "checkpoint":
        sync()
    phase(name)


def _peaks(device: torch.device) -> dict[str, float]:
    """Peaks of this rank's GPU memory in GB."""
    if device.type != "cuda":
        return {}
    held = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return {"mem_allocated": held[0] / 1e9, "mem_reserved": held[1] / 1e9}


def _report_memory(device: torch.device) -> None:
    """For the memory of similar runs: the peaks of the rank that needs the most."""
    if peaks := _peaks(device):
        allocated, reserved = _max_over_ranks(device, *peaks.values())
        name = torch.cuda.get_device_name(device)
        event("memory", peak_allocated_gb=allocated, peak_reserved_gb=reserved, device=name, torch=torch.__version__)


def _max_over_ranks(device: torch.device, *values: float) -> list[float]:
    found = torch.tensor(values, device=device)
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
    return [float(value) for value in found.tolist()]
