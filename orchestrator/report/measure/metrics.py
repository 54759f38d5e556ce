"""The figures of a condition by the names that they have in documents: those of the page's tables. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ..compare.conditions import Condition
from ..compare.statistics import Estimate
from ..compare.wording import loss_reduction, samples_per_s
from .run import MeasuredRun
from .timing import Timing

Figure = Callable[[MeasuredRun], float | None]


def _timed(figure: Callable[[Timing], float | None]) -> Figure:
    return lambda run: figure(run.timing) if run.timing else None


LOSSES: Final[Mapping[str, Figure]] = {
    "held_out": lambda run: run.loss.held_out,
    "first_loss": lambda run: run.loss.first,
    "final_loss": lambda run: run.loss.final,
    "best_loss": lambda run: run.loss.best,
    "loss_reduction": loss_reduction,
}
"""Medians over repeats, NaN where one of them was not finite."""

MEDIANS: Final[Mapping[str, Figure]] = {
    "step_s": _timed(lambda timing: timing.step_s),
    "step_iqr_s": _timed(lambda timing: timing.iqr_s),
    "step_p99_s": _timed(lambda timing: timing.p99_s),
    "tokens_per_s": _timed(lambda timing: timing.tokens_per_s),
    "samples_per_s": samples_per_s,
    "mfu": _timed(lambda timing: timing.mfu),
    "gpu_util_pct": lambda run: run.gpus.util_pct,
    "gpu_power_w": lambda run: run.gpus.power_w,
    "gpu_power_peak_w": lambda run: run.gpus.power_peak_w,
    "gpu_power_avg_peak_w": lambda run: run.gpus.power_avg_peak_w,
    "gpu_temperature_c": lambda run: run.gpus.temperature_c,
    "gpu_samples": lambda run: run.gpus.samples if run.gpus.names else None,
    "gpu_interval_s": lambda run: run.gpus.interval_s,
    "energy_j": lambda run: run.gpus.energy_j,
    "j_per_token": lambda run: run.gpus.j_per_token,
}
"""Medians over repeats."""

HIGHEST: Final[Mapping[str, Figure]] = {
    "mem_allocated_gb": lambda run: run.memory.allocated,
    "mem_reserved_gb": lambda run: run.memory.reserved,
    "mem_peak_reserved_gb": lambda run: run.memory.peak_reserved,
    "mem_device_gb": lambda run: run.memory.device,
    "mem_usable_gb": lambda run: run.memory.usable,
    "mem_share": lambda run: run.memory.share,
    "mem_host_gb": lambda run: run.memory.host,
    "gpu_power_capped": lambda run: run.gpus.power_capped,
}
"""Highest of all repeats."""

_SUMS: Final[Mapping[str, Figure]] = {
    "steps_timed": _timed(lambda timing: timing.steps),
    "window_s": _timed(lambda timing: timing.window_s),
    "warm_up_steps": _timed(lambda timing: timing.warm_up_steps),
    "warm_up_s": _timed(lambda timing: timing.warm_up_s),
}
"""Over the repeats that count, added up."""

ESTIMATES: Final = frozenset([*LOSSES, *MEDIANS])


def figures_of(condition: Condition, baseline: Condition) -> dict[str, Estimate | float | None]:
    """All of them; ``baseline`` is that of its workload."""
    return {
        **{name: condition.loss(figure) for name, figure in LOSSES.items()},
        **{name: condition.median(figure) for name, figure in MEDIANS.items()},
        **{name: condition.highest(figure) for name, figure in HIGHEST.items()},
        **{name: _sum(condition, figure) for name, figure in _SUMS.items()},
        "mem_beside_baseline": memory_beside(condition, baseline),
        "ranks": condition.runs[0].world_size,
    }


def median(condition: Condition, name: str) -> Estimate | None:
    """One of ``MEDIANS``."""
    return condition.median(MEDIANS[name])


def loss(condition: Condition, name: str) -> Estimate | None:
    """One of ``LOSSES``."""
    return condition.loss(LOSSES[name])


def highest(condition: Condition, name: str) -> float | None:
    """One of ``HIGHEST``."""
    return condition.highest(HIGHEST[name])


def memory_beside(condition: Condition, baseline: Condition) -> float | None:
    """By what part more memory is reserved than the baseline does; None of the baseline itself."""
    if condition is baseline:
        return None
    own, other = (each.highest(lambda run: run.memory.reserved) for each in (condition, baseline))
    return own / other - 1 if own is not None and other else None


def _sum(condition: Condition, figure: Figure) -> float | None:
    known = [value for run in condition.counted if (value := figure(run)) is not None]
    return sum(known) if known else None
