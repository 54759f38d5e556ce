"""The report as headings, sentences and tables: what the page and the Markdown file both show. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from ...campaign.code_text import mixed_code
from ...campaign.counts import RunCounts
from ...campaign.status import no_metrics
from ...failures.groups import alike, gist
from ...formatting import count, duration, short_number, shorten, some
from ..compare.advice import unread_config
from ..compare.baseline import BaselineComparison
from ..compare.conditions import unlike_machines
from ..compare.ignored_axes import ignored_axes
from ..compare.results import Results, WorkloadResults
from ..compare.statistics import Sameness
from ..compare.wording import difference, listed, loss_verdict, span, times
from ..measure.flags import flags_of
from ..measure.telemetry import GpuDetails
from . import tables
from .answers import answers
from .elements import Section, Table
from .figures import pictures
from .setup import environment, failures, setup

_INTERVAL_TEXT: Final = (
    "Intervals are those of the median over repeats, 95 % by bootstrap. With three repeats that is their range, which "
    "holds the true median three times in four."
)
_WHY: Final = 120
"""Characters of a reason in a sentence; the whole text stands in a table."""

_TO_LOSS_TEXT: Final = (
    "These differ in their tokens per step, so their losses at the end say nothing. What can be compared is how "
    "long they trained until their smoothed loss came down to what all of them reach: the time of steps alone, those "
    "of the warm-up counted as the median step."
)


def sections_of(results: Results, details: GpuDetails, ds_configs: dict[str, str]) -> list[Section]:
    """The report, the most important first; `ds_configs` has each condition's rendered DeepSpeed configuration."""
    found = [
        Section("Summary", tuple(summary(results)), figures=pictures("speed_memory", results)),
        *answers(results.workloads),
        *(_conditions(one) for one in results.workloads),
        *_time_to_loss(results),
        tables.losses(results),
        tables.speed(results),
        tables.scaling(results),
        tables.memory(results),
        failures(results),
        tables.goodput(results),
        *(_recommendation(one, ds_configs) for one in results.workloads),
        tables.gpus(results, details),
        *map(
            _folded,
            (setup(results), tables.mfu_inputs(results), tables.quality(results), environment(results, details)),
        ),
    ]
    return [section for section in found if section.text or section.tables or section.code]


def _folded(section: Section) -> Section:
    """What is looked up, not read."""
    return replace(section, folded=True)


def summary(results: Results) -> Iterator[str]:
    """The results in plain sentences."""
    runs = results.runs
    counts = RunCounts.of(runs)
    devices = ", ".join(dict.fromkeys(name for run in runs for name in run.device_names)) or "an unknown device"
    yield (
        f"{counts.completed} of {count(counts.total, 'run')} completed{counts.note}, "
        f"in {count(len(results.conditions), 'condition')}; "
        f"{_hours(results.cost.total, results.hour_unit)} on {devices}."
    )
    if results.only_cpus:
        yield "All on CPUs: their speeds and their memory say nothing about GPUs."
    for one in results.workloads:
        yield ": ".join(filter(None, (one.workload.name, one.recommendation.sentence)))
    yield from _reservations(results)
    if lost := sum(results.cost.lost.values()):
        share = lost / max(results.cost.total, 1e-9)
        yield f"{_hours(lost, results.hour_unit)} ({share:.0%}) were lost to attempts that failed or were cancelled."


def _reservations(results: Results) -> Iterator[str]:
    """What was left out, learned worse, or has to be read with care."""
    chosen = [one.recommendation for one in results.workloads if one.recommendation.fastest]
    if excluded := {name: why for one in chosen for name, why in one.excluded.items()}:
        yield f"Not considered: {listed(list(_causes(excluded)), 4)}."
    worse = [one for one in results.comparisons if one.loss.verdict == Sameness.WORSE]
    if others := [one.condition.name for one in worse if not one.is_baseline]:
        yield f"Learned worse than the baseline: {listed(others)}."
    if diverged := [one.condition.name for one in worse if one.is_baseline]:
        yield f"The loss of the baseline is not finite: {listed(diverged)}."
    if early := [run.name for run in results.runs if run.early]:
        yield f"Completed early, before the target step: {listed(early)}. Left out of comparisons."
    if changed := [run.name for run in results.runs if run.changed]:
        yield f"A retry changed {listed(changed)}: not what the spec asks for, so left out of comparisons."
    if mixed := mixed_code((run.name, run.code) for run in results.runs):
        yield mixed
    unlike = ((condition.name, unlike_machines(condition)) for condition in results.conditions)
    yield from (f"Repeats of {name} asked for different machines: {how}." for name, how in unlike if how)
    yield from ignored_axes(results.runs)
    if silent := [run.name for run in results.runs if run.silent]:
        yield no_metrics(silent)
    if flagged := sum(bool(flags_of(run)) for run in results.runs):
        yield f"{count(flagged, 'run')} with remarks on the data: see Data quality."


def _causes(excluded: Mapping[str, str]) -> Iterator[str]:
    """`a, b and 7 more (it failed: KeyError)`: those of one cause together, the whole texts are in the table."""
    for group in alike(excluded.items(), lambda one: gist(one[1].replace(one[0], "#"))):
        names, whys = zip(*group, strict=True)
        yield f"{some(names, 2)} ({shorten(whys[0], _WHY)})"


def _hours(seconds: float, unit: str) -> str:
    """Device-seconds as hours, with their unit."""
    number = seconds / tables.HOUR_S
    return f"{number:,.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"


def _conditions(one: WorkloadResults) -> Section:
    rows = tuple(_condition_row(each) for each in one.comparisons)
    loss, speed = one.comparisons[0].loss_is, "tokens/s" if one.comparisons[0].in_tokens else "steps/s"
    header = (
        "condition", "completed", "tries", speed, "interval", "× baseline", "speed", f"{loss} loss",
        "Δ loss", "loss", "memory", "MFU", "J/token",
    )  # fmt: skip
    text = [_compared_with(one)]
    speeds = [each.speed for each in one.comparisons if each.speed]
    if any(speed.low is None for speed in speeds):
        text.append("An interval takes three repeats of a condition (`repeats: 3`); without it nothing is established.")
    if any(speed.low is not None for speed in speeds):
        text.append(_INTERVAL_TEXT)
    return Section(_titled("Conditions", one), tuple(text), (Table(header, rows, "-rrr-r-rr-rrr"),))


def _titled(title: str, one: WorkloadResults) -> str:
    return ": ".join(filter(None, (title, one.workload.name)))


def _compared_with(one: WorkloadResults) -> str:
    baseline, conditions = one.workload.baseline, one.workload.conditions
    if not any(RunCounts.of(condition.runs).completed for condition in conditions):
        return f"Nothing has completed yet; {baseline.name} is the baseline."
    if not baseline.counted:
        return f"Nothing can be compared yet: no run of {baseline.name}, the baseline, has completed as the spec asks."
    return f"Compared with {baseline.name}, the baseline."


def _condition_row(one: BaselineComparison) -> tuple[str, ...]:
    condition = one.condition
    counts = RunCounts.of(condition.runs)
    changed = " changed" if any(run.changed for run in condition.runs) else ""
    return (
        condition.name + (" (baseline)" if one.is_baseline else ""),
        f"{counts.completed}/{counts.total}{counts.note}{changed}",
        str(sum(run.tries for run in condition.runs)),
        short_number(one.speed.value) if one.speed else "",
        span(one.speed),
        *_beside_baseline(one),
        condition.text("mem_reserved_gb"),
        condition.text("mfu"),
        condition.text("j_per_token"),
    )


def _beside_baseline(one: BaselineComparison) -> tuple[str, ...]:
    """Speed and loss beside the baseline's; of the baseline itself only what it is measured by."""
    loss = one.condition.number("held_out" if one.loss_is == "held-out" else "final_loss")
    if one.is_baseline:
        return "1.00" if one.times_baseline else "", "", loss, "", ""
    return (
        times(one.times_baseline) if one.times_baseline else "",
        str(one.order),
        loss,
        difference(one.loss.difference) if one.loss.difference else "",
        loss_verdict(one.loss),
    )


def _time_to_loss(results: Results) -> Iterator[Section]:
    if not results.times:
        return
    rows = tuple(
        (
            time.condition.name,
            f"{time.loss:.3f}",
            duration(time.seconds) if time.seconds is not None else "never",
            short_number(time.tokens),
            short_number(time.condition.tokens_per_step),
        )
        for time in results.times
    )
    header = ("condition", "loss", "training time", "tokens", "tokens a step")
    yield Section("Time to a loss", (_TO_LOSS_TEXT,), (Table(header, rows, "-rrrr"),))


def _recommendation(one: WorkloadResults, ds_configs: dict[str, str]) -> Section:
    found = one.recommendation
    text = [found.sentence]
    if len(found.front) > 1:
        text.append(f"Pareto-optimal in speed, memory and energy: {', '.join(found.front)}.")
    rows = tuple(found.excluded.items())
    excluded = (Table(("not considered", "because"), rows),) if rows else ()
    code = ds_configs.get(found.chosen.name, "") if found.chosen else ""
    unread = unread_config(found.chosen) if found.chosen else ""
    return Section(_titled("Recommendation", one), (*text, *found.advice, *filter(None, [unread])), excluded, code=code)
