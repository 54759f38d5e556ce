"""The report's tables of figures. Pure."""

from __future__ import annotations

from typing import Final

from ...views.text import duration, short_number
from ..compare.conditions import Condition
from ..compare.results import Results
from ..compare.scaling import scaling_of
from ..compare.wording import (
    HOUR_S,
    deviation,
    gigabytes,
    nats,
    only_cpus,
    part,
    percent,
    unit,
    value,
)
from ..measure.flags import flags_of
from ..measure.metrics import highest, loss, median, memory_beside
from ..measure.run import MeasuredRun
from .elements import Picture, Section, Table
from .figures import pictures

_LOSS_TEXT: Final = (
    "In nats per token. Final is the mean over the last twentieth of the steps, reduction what it is below the first; "
    "medians over repeats."
)
_SPEED_TEXT: Final = (
    "Milliseconds of an optimizer step, without the warm-up of each attempt; tokens/s are all tokens of the window by "
    "all of its time, over all ranks. Medians over repeats, ± their standard deviation; IQR and p99 are over steps."
)
_SCALING_TEXT: Final = (
    "Conditions that differ only in their number of ranks, and in the batch where it grows with them: they keep the "
    "batch, or the batch of a rank. Efficiency is the speed of a rank as a share of what it is with the fewest ranks."
)
_MEMORY_TEXT: Final = (
    "Peaks, highest of any rank and repeat: what tensors took and what PyTorch held, after the warm-up where the "
    "trainer tells it apart, and with it where that is over 2 % more; what the driver counted on the device. Host is "
    "of a node: the sum over the attempt's processes, sampled about once a second, or the peak of the job's own "
    "control group, which counts cached files too."
)
_CPU_MEMORY_TEXT: Final = (
    "These runs were on CPUs: allocated and reserved are both what the process of a rank took at most, with the "
    "program itself and its libraries."
)


def losses(results: Results) -> Section:
    """Losses of each condition."""
    rows = tuple(
        (
            condition.name,
            nats(loss(condition, "first_loss")),
            nats(loss(condition, "final_loss")),
            percent(loss(condition, "loss_reduction")),
            nats(loss(condition, "best_loss")),
            nats(loss(condition, "held_out")),
        )
        for condition in results.conditions
        if condition.counted
    )
    header = ("condition", "first", "final", "reduction", "best step", "held out")
    figures = pictures("loss", results) + pictures("loss_difference", results)
    return Section("Loss", (_LOSS_TEXT,) if rows else (), (Table(header, rows, "-rrrrr"),) if rows else (), figures)


def speed(results: Results) -> Section:
    """How fast each condition is."""
    rows = tuple(_speed_row(condition) for condition in results.conditions if condition.median(_step_s))
    header = (
        "condition", "step ms", "± ms", "IQR of steps", "p99", "tokens/s", "± tokens/s", "of a rank", "samples/s",
        "MFU", "repeats", "steps timed", "window", "warm-up steps", "warm-up",
    )  # fmt: skip
    tables = (Table(header, rows, "-rrrrrrrrrrrrrr"),) if rows else ()
    figures = pictures("step_time", results) + pictures("speed", results)
    return Section("Speed", (_SPEED_TEXT,) if rows else (), tables, figures)


def scaling(results: Results) -> Section:
    """What more ranks bring."""
    rows = tuple(
        (
            one.condition.name,
            f"{one.ranks}",
            one.keeps,
            short_number(one.tokens_per_s),
            short_number(one.tokens_per_s / one.ranks),
            part(one.efficiency),
            "" if one.condition is one.reference else one.reference.name,
        )
        for one in scaling_of(results.conditions)
    )
    header = ("condition", "ranks", "keeps", "tokens/s", "of a rank", "efficiency", "beside")
    return Section("Scaling", (_SCALING_TEXT,) if rows else (), (Table(header, rows, "-r-rrr-"),) if rows else ())


def _speed_row(condition: Condition) -> tuple[str, ...]:
    timings = [run.timing for run in condition.counted if run.timing]
    ranks = condition.runs[0].world_size
    step_ms = condition.median(lambda run: 1e3 * run.timing.step_s if run.timing else None)
    tokens = median(condition, "tokens_per_s")
    return (
        condition.name,
        value(step_ms),
        deviation(step_ms),
        value(condition.median(lambda run: 1e3 * run.timing.iqr_s if run.timing else None), digits=3),
        value(condition.median(lambda run: 1e3 * run.timing.p99_s if run.timing else None)),
        short_number(tokens.value) if tokens else "",
        deviation(tokens),
        short_number(tokens.value / ranks) if tokens and ranks > 1 else "",
        value(median(condition, "samples_per_s")),
        percent(median(condition, "mfu")),
        str(len(timings)),
        f"{sum(timing.steps for timing in timings):,}",
        f"{sum(timing.window_s for timing in timings):,.1f} s",
        f"{sum(timing.warm_up_steps for timing in timings):,}",
        duration(sum(timing.warm_up_s for timing in timings)),
    )


def _step_s(run: MeasuredRun) -> float | None:
    return run.timing.step_s if run.timing else None


def memory(results: Results) -> Section:
    """What each condition takes of memory."""
    rows = tuple(
        (
            condition.name,
            gigabytes(highest(condition, "mem_allocated_gb")),
            gigabytes(highest(condition, "mem_reserved_gb")),
            gigabytes(condition.highest(lambda run: run.memory.higher_peak)),
            gigabytes(highest(condition, "mem_device_gb")),
            gigabytes(highest(condition, "mem_usable_gb")),
            part(highest(condition, "mem_share")),
            _beside(condition, one.workload.baseline),
            gigabytes(highest(condition, "mem_host_gb")),
        )
        for one in results.compared
        for condition in one.workload.conditions
        if condition.highest(lambda run: run.memory.reserved or run.memory.allocated) is not None
    )
    header = (
        "condition", "allocated", "reserved", "with warm-up", "device", "usable", "peak of usable", "beside baseline",
        "host",
    )  # fmt: skip
    return Section(
        "Memory",
        (_MEMORY_TEXT, *((_CPU_MEMORY_TEXT,) if only_cpus(results.runs) else ())) if rows else (),
        (Table(header, rows, "-rrrrrrrr"),) if rows else (),
        pictures("memory", results),
    )


def _beside(condition: Condition, baseline: Condition) -> str:
    """How much more memory is reserved than the baseline does."""
    more = memory_beside(condition, baseline)
    return "" if more is None else f"{more:+.0%}"


def quality(results: Results) -> Section:
    """How complete and clean the figures of each run are."""
    rows = tuple(_quality_row(run) for run in results.runs if run.step is not None or flags_of(run))
    header = (
        "run", "state", "steps expected", "received", "gaps", "repeated", "not finite", "skipped", "allocator retries",
        "waited for data", "clocks held down", "remarks",
    )  # fmt: skip
    return Section("Data quality", (), (Table(header, rows, "--rrrrrrrrr-"),) if rows else ())


def _quality_row(run: MeasuredRun) -> tuple[str, ...]:
    quality = run.quality
    return (
        run.name,
        str(run.state),
        f"{quality.expected:,}" if quality.expected else "",
        f"{quality.received:,}",
        f"{quality.gaps:,}" if quality.gaps else "",
        f"{quality.repeated:,}" if quality.repeated else "",
        f"{quality.non_finite:,}" if quality.non_finite else "",
        f"{quality.skipped_steps:,}" if quality.skipped_steps else "",
        f"{quality.alloc_retries:,}" if quality.alloc_retries else "",
        f"{quality.data_wait:.1%}" if quality.data_wait else "",
        f"{run.gpus.slowed:.1%}" if run.gpus.slowed else "",
        "; ".join(flags_of(run)),
    )


def goodput(results: Results) -> Section:
    """Where the hours of the GPUs went."""
    cost = results.cost
    if not cost.total:
        return Section("Goodput")
    parts = [("training steps that count", cost.training), ("warm-up and compiling: the first steps", cost.warm_up)]
    parts += [("starting, evaluating, saving", cost.around)]
    parts += [(f"lost to {kind.replace('_', ' ')}", value) for kind, value in cost.lost.items()]
    rows = tuple((what, f"{value / HOUR_S:,.3f}", f"{value / cost.total:.1%}") for what, value in parts)
    text = (f"{unit(results.runs)} of all attempts, which waited {duration(cost.queued_s)} in the queue, added up.",)
    return Section("Goodput", text, (Table(("what", unit(results.runs), "share"), rows, "-rr"),), (Picture("goodput"),))
