"""Figures as the text of a cell or a sentence. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from ...views.text import figure, short_number
from ..measure.run import MeasuredRun
from .conditions import Condition
from .statistics import Estimate

HOUR_S: Final = 3600.0


def devices(runs: Iterable[MeasuredRun]) -> str:
    """Names of the devices that runs were on."""
    names = dict.fromkeys(name for run in runs for name in (run.gpus.names or _told(run)))
    return ", ".join(names) or "an unknown device"


def unit(runs: Iterable[MeasuredRun]) -> str:
    """What the time of attempts is counted in."""
    return "GPU-hours" if any(_on_gpus(run) for run in runs) else "rank-hours"


def only_cpus(runs: Sequence[MeasuredRun]) -> bool:
    """Whether all runs that say where they were say that it was on CPUs."""
    told = [_told(run) for run in runs if _told(run)]
    return bool(told) and all("cpu" in names for names in told) and not any(run.gpus.names for run in runs)


def _on_gpus(run: MeasuredRun) -> bool:
    """As it says, else as its job was asked to be."""
    if run.gpus.names or _told(run):
        return "cpu" not in _told(run)
    slurm = run.config.get("slurm") or {}
    return run.config.get("executor") != "local" and bool(slurm.get("gpus_per_node"))


def hours(seconds: float, unit: str) -> str:
    """Device-seconds as hours, with their unit."""
    number = seconds / HOUR_S
    return f"{number:,.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """The first names, and how many more."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def value(found: Estimate | None, unit: str = "", digits: int = 4) -> str:
    """A median with so many significant digits."""
    return "" if found is None else figure(found.value, digits) + unit


def deviation(found: Estimate | None) -> str:
    """The standard deviation over repeats."""
    if found is None or found.std is None:
        return ""
    return short_number(found.std) if found.std >= 1000 else figure(found.std, 3)


def nats(found: Estimate | None) -> str:
    """A loss; ``NaN`` where it was not finite."""
    return "" if found is None else "NaN" if math.isnan(found.value) else f"{found.value:.4f}"


def difference(found: Estimate) -> str:
    """Of losses, with its sign; what rounds to nothing has none of its own."""
    return f"{round(found.value, 4) + 0.0:+.4f}"


def span(found: Estimate | None) -> str:
    """The interval of a median."""
    if found is None or found.low is None or found.high is None:
        return ""
    return f"{short_number(found.low)} to {short_number(found.high)}"


def times(found: Estimate) -> str:
    """A ratio, with its interval where there is one."""
    interval = "" if found.low is None or found.high is None else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.value:.2f}{interval}"


def percent(found: Estimate | None) -> str:
    """A share's median."""
    return "" if found is None else "NaN" if math.isnan(found.value) else f"{found.value:.1%}"


def part(share: float | None) -> str:
    """A share."""
    return "" if share is None else f"{share:.0%}"


def gigabytes(number: float | None) -> str:
    """Memory."""
    return "" if number is None else f"{number:.1f} GB"


def kilojoules(found: Estimate | None) -> str:
    """Energy that is kept in joules."""
    return "" if found is None else figure(found.value / 1e3, 3)


def samples_per_s(run: MeasuredRun) -> float | None:
    """Samples of all ranks; None where the tokens of a step or its samples are not known."""
    samples = (run.config.get("train") or {}).get("global_batch")
    tokens = run.timing.tokens_per_s if run.timing else None
    return tokens / run.tokens_per_step * samples if tokens and run.tokens_per_step and samples else None


def loss_reduction(run: MeasuredRun) -> float | None:
    """By what part of the first loss the final one is lower."""
    first, final = run.loss.first, run.loss.final
    return 1 - final / first if first and final is not None else None


def values_of(condition: Condition) -> list[tuple[str, str]]:
    """A condition's figures by name, as text."""
    done = sum(run.completed for run in condition.runs)
    tokens = condition.median(lambda run: run.timing.tokens_per_s if run.timing else None)
    return [
        ("runs completed", f"{done} of {len(condition.runs)}"),
        ("step time", value(condition.median(lambda run: 1e3 * run.timing.step_s if run.timing else None), " ms")),
        ("tokens/s", short_number(tokens.value) if tokens else ""),
        ("MFU", percent(condition.median(lambda run: run.timing.mfu if run.timing else None))),
        ("final loss", nats(condition.loss(lambda run: run.loss.final))),
        ("held-out loss", nats(condition.loss(lambda run: run.loss.held_out))),
        ("memory reserved", gigabytes(condition.highest(lambda run: run.memory.reserved))),
        ("GPU utilisation", value(condition.median(lambda run: run.gpus.util_pct), " %", 3)),
        ("power of a GPU", value(condition.median(lambda run: run.gpus.power_w), " W", 3)),
        ("J/token", value(condition.median(lambda run: run.gpus.j_per_token))),
        ("tries", str(sum(run.tries for run in condition.runs))),
    ]


def _told(run: MeasuredRun) -> tuple[str, ...]:
    return (run.software["device"],) if run.software.get("device") else ()
