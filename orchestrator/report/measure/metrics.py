"""The registry of a run's metrics, for the page, its data files, comparisons and recommendations. Pure.

A reported metric is one row here, and a column of a table on the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Final

from dscampaign.orchestrator.formatting import figure, loss_number, short_number

from .run import MeasuredRun
from .timing import Timing


class OverRepeats(Enum):
    """The way in which repeats of a condition make a value."""

    MEDIAN = auto()
    """The median of those that may be compared, with its interval."""
    LOSS = auto()
    """The same, but NaN where one of them was not finite."""
    HIGHEST = auto()
    """The highest of all repeats."""
    SUM = auto()
    """The sum over those that may be compared."""


@dataclass(frozen=True)
class Metric:
    """A metric of a run.

    Attributes:
        name: in report.json and conditions.csv.
        of: its value for a run; None if unknown.
        digits: the value, in ``unit``, as text.
        unit: shown unit; empty if ``digits`` contains it.
        scale: factor from the value's own unit to the shown unit.
        label: its name for people; empty for a figure that only tables have.
    """

    name: str
    of: Callable[[MeasuredRun], float | None]
    over: OverRepeats
    digits: Callable[[float], str]
    unit: str = ""
    scale: float = 1.0
    label: str = ""

    def number(self, value: float | None) -> str:
        """Return the value without its unit, for a column whose header has the unit; empty if unknown."""
        return "" if value is None else "NaN" if math.isnan(value) else self.digits(value * self.scale)

    def text(self, value: float | None) -> str:
        """Return the value with its unit; empty if unknown."""
        number = self.number(value)
        return f"{number} {self.unit}" if self.unit and number not in ("", "NaN") else number


def _timed(value: Callable[[Timing], float | None]) -> Callable[[MeasuredRun], float | None]:
    return lambda run: value(run.timing) if run.timing else None


def _samples_per_s(run: MeasuredRun) -> float | None:
    samples, tokens = run.train.get("global_batch"), run.timing.tokens_per_s if run.timing else None
    return tokens / run.tokens_per_step * samples if tokens and run.tokens_per_step and samples else None


def _significant(number: int) -> Callable[[float], str]:
    return lambda value: figure(value, number)


_PERCENT: Final = "{:.1%}".format
_WHOLE_PERCENT: Final = "{:.0%}".format
_COUNT: Final = "{:,.0f}".format

_loss = partial(Metric, over=OverRepeats.LOSS, digits=loss_number, unit="nats")
_median = partial(Metric, over=OverRepeats.MEDIAN)
_step_time = partial(_median, unit="ms", scale=1e3)
_gpu = partial(_median, digits=_significant(3))
_highest = partial(Metric, over=OverRepeats.HIGHEST)
_memory = partial(_highest, digits="{:.1f}".format, unit="GB")
_sum = partial(Metric, over=OverRepeats.SUM)

_ALL: Final = (
    _step_time("step_s", _timed(lambda timing: timing.step_s), digits=_significant(4), label="step time"),
    _step_time("step_mean_s", _timed(lambda timing: timing.mean_s), digits=_significant(4)),
    _step_time("step_std_s", _timed(lambda timing: timing.std_s), digits=_significant(3)),
    _step_time("step_p99_s", _timed(lambda timing: timing.p99_s), digits=_significant(4)),
    _median(
        "tokens_per_s", _timed(lambda timing: timing.tokens_per_s), digits=short_number, unit="tokens/s", label="speed"
    ),
    _median("samples_per_s", _samples_per_s, digits=_significant(4)),
    _median("mfu", _timed(lambda timing: timing.mfu), digits=_PERCENT, label="MFU"),
    _loss("held_out", lambda run: run.loss.held_out, label="held-out loss"),
    _loss("first_loss", lambda run: run.loss.first),
    _loss("final_loss", lambda run: run.loss.final, label="final loss"),
    _loss("best_loss", lambda run: run.loss.best),
    _loss("loss_reduction", lambda run: run.loss.reduction, digits=_PERCENT, unit=""),
    _gpu("gpu_util_pct", lambda run: run.gpus.util_pct, unit="%", label="GPU utilisation"),
    _gpu("gpu_power_w", lambda run: run.gpus.power_w, unit="W", label="GPU power"),
    _gpu("gpu_power_peak_w", lambda run: run.gpus.power_peak_w, unit="W"),
    _gpu("gpu_power_avg_peak_w", lambda run: run.gpus.power_avg_peak_w, unit="W"),
    _gpu("gpu_temperature_c", lambda run: run.gpus.temperature_c, unit="°C"),
    _median("gpu_samples", lambda run: run.gpus.samples if run.gpus.names else None, digits=_significant(4)),
    _gpu("energy_j", lambda run: run.gpus.energy_j, unit="kJ", scale=1e-3),
    _gpu("j_per_token", lambda run: run.gpus.j_per_token, digits=_significant(4), unit="J/token", label="energy"),
    _memory("mem_allocated_gb", lambda run: run.memory.allocated),
    _memory("mem_reserved_gb", lambda run: run.memory.reserved, label="memory"),
    _memory("mem_end_gb", lambda run: run.memory.end),
    _memory("mem_peak_reserved_gb", lambda run: run.memory.peak_reserved),
    _memory("mem_device_gb", lambda run: run.memory.device),
    _memory("mem_usable_gb", lambda run: run.memory.usable),
    _highest("mem_share", lambda run: run.memory.share, digits=_WHOLE_PERCENT),
    _memory("mem_host_gb", lambda run: run.memory.host),
    _highest("gpu_power_capped", lambda run: run.gpus.power_capped, digits=_WHOLE_PERCENT),
    _sum("steps_timed", _timed(lambda timing: timing.steps), digits=_COUNT),
)

METRICS: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _ALL}
"""By name, in the order of the data files."""
