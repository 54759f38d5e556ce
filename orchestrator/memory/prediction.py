"""The memory ledger: the measured memory of a configuration, and the micro-batch that follows from it. Pure.

The memory of a rank is `a + b x micro_batch`. Measurements of runs with the same memory key decide where the next run
of that key starts, so a single out-of-memory is enough for all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import linear_regression, median
from typing import Any, Final

from dscampaign.db.records import UNKNOWN, MemoryObservation
from dscampaign.orchestrator.spec.batch_size import divisors, per_rank_batch, smaller_micro_batch
from dscampaign.orchestrator.spec.effects import DESCRIBES_ONLY
from dscampaign.orchestrator.spec.model import RunConfig

HEADROOM: Final = 0.96
"""The part of the usable memory that a prediction may fill: the rest is lost to fragmentation."""

OOM_EXPIRES_S: Final = 14 * 24 * 3600.0
"""How long an out-of-memory counts: it may have been a leak, or another's fault, and nothing else would refute it."""

_READABLE: Final = 90  # characters; with the digest, a device's name and a version it stays below 255
_FLATTER: Final = 0.9
_NO_MEMORY: Final = frozenset({"lr", "weight_decay", "betas", "eps"})
_NO_MEMORY_OF_COMMANDS: Final = DESCRIBES_ONLY | {
    *("seed", "lr", "warmup_steps", "schedule", "schedule_steps", "min_lr_ratio", "weight_decay"),
    *("beta1", "beta2", "eps", "steps", "epochs", "micro_batch"),
}
_OF_MEMORY: Final = (
    *("model", "seq_len", "precision", "zero_stage", "activation_checkpointing", "compile", "engine", "offload"),
    *("fsdp2_reduce", "nvme_path", "deepcompile", "attention", "fused_loss", "sequence_parallel", "tensor_parallel"),
)
_NO_MEMORY_SECTIONS: Final = frozenset({"gradient_clipping", "scheduler", "steps_per_print", "wall_clock_breakdown"})


@dataclass(frozen=True)
class Choice:
    """A micro-batch to try, its predicted peak memory if that is known, and the reason; "" for the spec's own."""

    micro_batch: int
    predicted_gb: float | None
    why: str = ""


# -- which runs are alike --------------------------------------------------------------------------------------


def memory_key(config: RunConfig) -> str | None:
    """Return the key of all that determines a rank's memory except its micro-batch; None for a script's own batches.

    Of a command, all arguments, the environment and all sizes count, because their effect is unknown. The key has at
    most 150 characters, and is readable at the front.
    """
    if config.train.global_batch is None:
        return None
    facts = _facts(config)
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
    train = config.train
    model = train.model.get("model_type", "model") if isinstance(train.model, Mapping) else train.model
    name = (config.command[0] if config.command else str(model)).rpartition("/")[2].replace("|", "/")
    return f"{name[:_READABLE]} seq{train.seq_len} {config.nodes}x{config.ranks()} #{digest}"


def _facts(config: RunConfig) -> dict[str, Any]:
    train, slurm = config.train, config.slurm
    limits = {"gpu": config.local.gpu_mem_per_process, "cpu": config.local.mem_per_process}
    machine = slurm.model_dump(include={"partition", "constraint", "gres", "gpus_per_node"})
    facts: dict[str, Any] = {
        **train.model_dump(mode="json", include=set(_OF_MEMORY)),
        "tokenizer": train.tokenizer if isinstance(train.model, Mapping) else None,  # its size is the vocabulary's
        "dropout": train.dropout > 0,  # its masks are kept until the backward pass
        "deepspeed": _of_memory(config.deepspeed),
        "env": config.env,
        "python": config.python,
        **({"image": config.container.image} if config.container else {}),
        "ranks": [config.nodes, config.ranks()],
        "machine": limits if config.executor == "local" else machine,
    }
    if config.command is not None:
        facts["command"] = config.command
        facts["train"] = train.model_dump(mode="json", exclude={*_NO_MEMORY_OF_COMMANDS, *_OF_MEMORY, "strategy"})
    return facts


def _of_memory(deepspeed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec's DeepSpeed section without keys that only change numerics."""
    kept = {name: value for name, value in deepspeed.items() if name not in _NO_MEMORY_SECTIONS}
    optimizer = kept.get("optimizer")
    if isinstance(optimizer, Mapping) and isinstance(optimizer.get("params"), Mapping):
        params = {name: value for name, value in optimizer["params"].items() if name not in _NO_MEMORY}
        kept["optimizer"] = {**optimizer, "params": params}
    return kept


# -- what is known of them -------------------------------------------------------------------------------------


def believed(observations: Iterable[MemoryObservation], now_s: float) -> list[MemoryObservation]:
    """Return the observations of a memory key that still count, the oldest first.

    An out-of-memory expires, and gives way to an equally large micro-batch that has trained on the device since. On
    each device, figures of the newest version of PyTorch replace those of others.
    """
    by_device: dict[str, list[MemoryObservation]] = defaultdict(list)
    for observation in observations:
        by_device[observation.key.rpartition("|")[0]].append(observation)
    return [observation for group in by_device.values() for observation in _counting(group, now_s - OOM_EXPIRES_S)]


def _counting(group: Sequence[MemoryObservation], since_s: float) -> Iterator[MemoryObservation]:
    versions = {each: each.key.rpartition("|")[2] for each in group}
    newest = next((version for version in reversed(versions.values()) if version != UNKNOWN), None)
    trained = [each for each in group if not each.oom and each.peak_gb is not None]
    if any(versions[each] == newest for each in trained):
        group, trained = ([each for each in some if versions[each] in (newest, UNKNOWN)] for some in (group, trained))
    for each in group:
        began_s = each.created_s or 0.0
        larger = (other.created_s or 0.0 for other in trained if other.micro_batch >= each.micro_batch)
        refuted = began_s > 0 and any(later_s > began_s for later_s in larger)
        expired = each.created_s is not None and each.created_s < since_s
        if not (each.oom and (refuted or expired)):
            yield each


@dataclass(frozen=True)
class Ledger:
    """The observations of a memory key on all devices."""

    observations: tuple[MemoryObservation, ...] = ()

    @classmethod
    def of(cls, observations: Iterable[MemoryObservation]) -> Ledger:
        """A ledger of these observations."""
        return cls(tuple(observations))

    def with_oom(self, micro_batch: int) -> Ledger:
        """The ledger with this out-of-memory added."""
        return Ledger((*self.observations, MemoryObservation("", 0, micro_batch, oom=True)))

    @cached_property
    def too_big(self) -> int | None:
        """The smallest micro-batch that ran out of memory."""
        return min((observation.micro_batch for observation in self.observations if observation.oom), default=None)

    @cached_property
    def fitting(self) -> int | None:
        """The largest micro-batch that was seen to train, below all that ran out of memory."""
        return max((micro for micro, _ in self._peaks if self.too_big is None or micro < self.too_big), default=None)

    @cached_property
    def usable_gb(self) -> float | None:
        """Return the usable memory of a rank in GB, on the smallest device seen.

        The median of each device counts, because the share of other processes changes.
        """
        by_device: dict[str, list[float]] = defaultdict(list)
        for observation in self.observations:
            if observation.usable_gb is not None:
                by_device[observation.key].append(observation.usable_gb)
        return min((median(sizes) for sizes in by_device.values()), default=None)

    def predict_gb(self, micro_batch: int) -> float | None:
        """Return the peak memory of a rank with this micro-batch, in GB; None if too little is known."""
        return self.line[0] + self.line[1] * micro_batch if self.line else None

    def fits(self, micro_batch: int) -> bool | None:
        """Return whether a micro-batch fits on every device seen; None if unknown.

        A size that ran out of memory does not fit, nor does a larger size; a size that has trained fits, and so does a
        smaller size. A line that contradicts an out-of-memory is not used for other sizes.
        """
        if self.too_big is not None and micro_batch >= self.too_big:
            return False
        if self.fitting is not None and micro_batch <= self.fitting:
            return True
        return self._predicted_to_fit(micro_batch) if self.predicts else None

    def largest(self, candidates: Iterable[int]) -> int | None:
        """The largest of some micro-batches that is known or predicted to fit."""
        return max((micro for micro in candidates if self.fits(micro)), default=None)

    def _predicted_to_fit(self, micro_batch: int) -> bool:
        predicted_gb, usable_gb = self.predict_gb(micro_batch), self.usable_gb
        return predicted_gb is not None and usable_gb is not None and predicted_gb <= HEADROOM * usable_gb

    @cached_property
    def predicts(self) -> bool:
        """Whether there is a line, and no out-of-memory that it did not foresee."""
        if self.line is None or self.usable_gb is None:
            return False
        return self.too_big is None or not self._predicted_to_fit(self.too_big)

    @cached_property
    def _peaks(self) -> tuple[tuple[int, float], ...]:
        trained = (each for each in self.observations if not each.oom)
        return tuple((each.micro_batch, each.peak_gb) for each in trained if each.peak_gb is not None)

    @cached_property
    def line(self) -> tuple[float, float] | None:
        """`a` and `b` of `a + b x micro_batch`, in GB; None if too little is known."""
        measured = _rising_line(self._peaks)
        sample_gb = max((each.per_sample_gb for each in self.observations if each.per_sample_gb), default=None)
        # Small micro-batches can all have the peak of the optimizer's step: a line through them would be too flat.
        if measured and measured[1] > _FLATTER * (sample_gb or 0.0):
            return measured
        if sample_gb is None:
            return None
        if self._peaks:
            largest = max(micro for micro, _ in self._peaks)
            worst_gb = max(peak for micro, peak in self._peaks if micro == largest)
            return max(worst_gb - sample_gb * largest, 0.0), sample_gb
        base_gb = max((each.after_init_gb for each in self.observations if each.after_init_gb), default=None)
        return None if base_gb is None else (base_gb, sample_gb)


def _rising_line(points: Sequence[tuple[int, float]]) -> tuple[float, float] | None:
    """Return intercept and slope; None for fewer than two different micro-batches, or a line that does not rise."""
    if len({micro for micro, _ in points}) < 2:
        return None
    slope, intercept = linear_regression(*zip(*points, strict=True))
    return (intercept, slope) if slope > 0 else None


# -- what follows ----------------------------------------------------------------------------------------------


def start_micro_batch(global_batch: int, world_size: int, requested: int, ledger: Ledger) -> Choice:
    """Return the micro-batch to start a run with: the spec's, or less if that is known not to fit.

    `requested` is the spec's, a divisor of a rank's share; ranks that share samples count as one in `world_size`.
    """
    if ledger.fits(requested) is not False:
        return Choice(requested, ledger.predict_gb(requested))
    return _smaller(global_batch, world_size, requested, ledger) or Choice(requested, ledger.predict_gb(requested))


def after_oom(global_batch: int, world_size: int, failed: int, ledger: Ledger) -> Choice | None:
    """Return the micro-batch to try after another ran out of memory, with the same global batch.

    This is the largest divisor of a rank's share that is predicted to fit; without a prediction the largest of at most
    half the size, or a larger size that was seen to fit; None at micro-batch 1. The ledger need not know the failure.
    """
    return _smaller(global_batch, world_size, failed, ledger.with_oom(failed))


def _smaller(global_batch: int, world_size: int, too_big: int, ledger: Ledger) -> Choice | None:
    candidates = [size for size in divisors(per_rank_batch(global_batch, world_size)) if size < too_big]
    if not candidates:
        return None
    # 1 even where that is predicted not to fit: a run that does not try can never show that a prediction errs.
    micro = ledger.largest(candidates) or 1
    if not ledger.predicts:
        failed = min(too_big, ledger.too_big or too_big)
        micro = max(micro, smaller_micro_batch(global_batch, world_size, failed) or 1)
    return Choice(micro, ledger.predict_gb(micro), _reason(too_big, micro, ledger))


def _reason(requested: int, micro: int, ledger: Ledger) -> str:
    ran_out = ledger.too_big is not None and requested >= ledger.too_big
    before = f"micro-batch {ledger.too_big} ran out of memory" if ran_out else _predicted(requested, ledger)
    trained = ledger.fitting is not None and micro <= ledger.fitting
    after = f"{micro} is known to fit" if trained else _predicted(micro, ledger)
    return ", ".join(part for part in (before, after) if part)


def _predicted(micro: int, ledger: Ledger) -> str:
    predicted_gb, usable_gb = ledger.predict_gb(micro), ledger.usable_gb
    if predicted_gb is None or usable_gb is None:
        return ""
    return f"{micro} is predicted to take {predicted_gb:.1f} of {usable_gb:.1f} GB"
