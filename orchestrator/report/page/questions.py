"""The questions of the page, each with its sentence, chart and table. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from dscampaign.orchestrator.campaign.status import no_metrics
from dscampaign.orchestrator.failures.groups import alike, cause
from dscampaign.orchestrator.formatting import count, duration, figure, short_number, some, words
from dscampaign.orchestrator.report.compare.baseline import BaselineComparison
from dscampaign.orchestrator.report.compare.conditions import Condition
from dscampaign.orchestrator.report.compare.ranking import pace
from dscampaign.orchestrator.report.compare.reasons import Why, grouped_reasons, reasons_text
from dscampaign.orchestrator.report.compare.results import HOUR_S, Results, WorkloadResults
from dscampaign.orchestrator.report.compare.sensitivity import loss_effect, memory_effect, sensitivities, speed_effect
from dscampaign.orchestrator.report.compare.statistics import Estimate
from dscampaign.orchestrator.report.compare.wording import difference, places, times
from dscampaign.orchestrator.report.measure.flags import REASONS, remarks_of
from dscampaign.orchestrator.report.measure.load import FollowUp
from dscampaign.orchestrator.spec.effects import WORK
from dscampaign.orchestrator.spec.objective import Objective

from . import charts
from .curves import Curves, curves_of
from .elements import Chart, Section, Table, TableCell, table_of
from .looks import Looks

MOST_WORKLOADS: Final = 6
"""So many have charts; more have the tables."""

_VERDICT: Final = "verdict vs baseline"

Column = Callable[[BaselineComparison], TableCell | str]


def questions(results: Results, looks: Looks, first: Section) -> Iterator[Section]:
    """Yield the sections between the first screen, whose charts they leave out, and the details."""
    shown = [chart.name for chart in first.charts]
    sections = []
    if results.search:
        from .search import search_found  # what it loads takes a second

        sections.append(search_found(results.search, looks))
    if results.workloads:
        sections += [make(results, looks) for make in (_speed, _learning, _memory, _settings)]
    sections += [_follow_ups(results), problems(results), _hours(results), _gpus(results, looks)]
    for section in sections:
        yield replace(section, charts=tuple(chart for chart in section.charts if chart.name not in shown))


def named(one: Condition, looks: Looks, *, is_baseline: bool = False) -> TableCell:
    """The cell that names a condition."""
    look = looks[one.name]
    return TableCell(look.title, note="baseline" if is_baseline else "", tip=look.name, colour=look.colour)


def _conditions(
    results: Results, looks: Looks, columns: Mapping[str, Column], shown: Sequence[BaselineComparison]
) -> tuple[Table, ...]:
    """Return a row for each condition, with its workload if there are several."""
    workloads = {each.condition.name: one.workload.name for one in results.workloads for each in one.comparisons}
    first: dict[str, Column] = {"condition": lambda one: named(one.condition, looks, is_baseline=one.is_baseline)}
    if len(results.workloads) > 1:
        first["workload"] = lambda one: workloads[one.condition.name]
    return table_of({**first, **columns}, shown, file="conditions.csv")


def _metric(name: str) -> Column:
    """Return the cell of a metric over a condition's repeats, without its unit, which the header has."""

    def cell(one: BaselineComparison) -> TableCell:
        value = one.condition.value(name)
        return TableCell(one.condition.number(name), value if value is not None and math.isfinite(value) else None)

    return cell


def _beside(of: Callable[[BaselineComparison], Any]) -> Column:
    """Return a column that the baseline has empty."""
    return lambda one: "" if one.is_baseline else of(one)


def _estimate(estimate: Estimate | None, text: Callable[[Estimate], str]) -> TableCell:
    return TableCell(text(estimate), estimate.value) if estimate else TableCell("")


def _charts(results: Results, make: Callable[[WorkloadResults], Chart | None]) -> tuple[Chart, ...]:
    """Return small multiples: the chart of each workload, with its name."""
    drawn = results.workloads[:MOST_WORKLOADS]
    numbered = enumerate(drawn, 1)
    return tuple(of_workload(chart, one, place, len(drawn)) for place, one in numbered if (chart := make(one)))


def of_workload(chart: Chart, one: WorkloadResults, place: int, several: int) -> Chart:
    """The chart, with the workload in its name and title if there are several."""
    whole = f"{one.workload.name}: {chart.title}"
    return replace(chart, name=f"{chart.name}_{place}", title=whole) if several > 1 else chart


def _speed(results: Results, looks: Looks) -> Section:
    shown = sorted((one for one in results.comparisons if one.speed), key=pace, reverse=True)
    unit = shown[0].speed_unit if shown else ""
    columns: dict[str, Column] = {
        f"median {unit}": lambda one: _estimate(one.speed, lambda change: short_number(change.value)),
        f"range ({unit})": lambda one: " to ".join(map(short_number, (one.speed and one.speed.ends) or ())),
        "mean × baseline": _beside(lambda one: _estimate(one.times_baseline, times)),
        _VERDICT: _beside(lambda one: words(one.order)),
        "step (ms)": _metric("step_s"),
        "MFU": _metric("mfu"),
        "mean (ms)": _metric("step_mean_s"),
        "σ of steps (ms)": _metric("step_std_s"),
        "p99 (ms)": _metric("step_p99_s"),
        "tokens/s of a rank": _of_a_rank,
        "samples/s": _metric("samples_per_s"),
        "repeats": lambda one: str(sum(run.timing is not None for run in one.condition.counted)),
        "steps timed": _metric("steps_timed"),
    }
    basis = results.workloads[0].basis
    if len(results.workloads) > 1:
        basis = "baselines are marked; 95 % intervals, corrected for all comparisons of a workload"
    text = f"After the warm-up; × is of geometric means; {basis}."
    if by := next((one.paired_by for one in results.comparisons if one.paired_by), ""):
        text += f" Some {by}s were slower as a whole, so × compares runs of the same {by}."
    pictures = _charts(results, lambda one: charts.trade_off(one, looks))
    return Section("How fast?", text, pictures, _conditions(results, looks, columns, shown))


def _of_a_rank(one: BaselineComparison) -> str:
    tokens, ranks = one.condition.value("tokens_per_s"), one.condition.ranks
    return short_number(tokens / ranks) if tokens is not None and ranks > 1 else ""


def curves(one: WorkloadResults, looks: Looks, several: int) -> Curves:
    """The curves of a workload, with its share of the page."""
    return curves_of(one, looks, 1 / min(several, MOST_WORKLOADS))


def _learning(results: Results, looks: Looks) -> Section:
    unit = "" if any(one.condition.own_loss for one in results.comparisons) else " (nats)"
    drawn = results.workloads[:MOST_WORKLOADS]
    curves_by_name = {one.workload.name: curves(one, looks, len(drawn)) for one in drawn}
    pictures = _charts(results, lambda one: charts.losses(curves_by_name[one.workload.name], looks, unit))
    shown = [one for one in results.comparisons if one.condition.counted]
    if not shown:
        return Section("Same learning?", charts=pictures)
    compared = "held_out" if shown[0].loss_is == "held-out" else "final_loss"
    shown.sort(key=lambda one: math.inf if math.isnan(value := one.condition.value(compared) or math.nan) else value)
    digits = places((one.loss for one in shown), shown[0].loss_unit)

    def gap(one: BaselineComparison, value: float) -> str:
        return difference(value, one.loss, one.loss_unit, digits=digits)

    def interval(one: BaselineComparison) -> str:
        return " to ".join(gap(one, end) for end in (one.loss.difference and one.loss.difference.ends) or ())

    columns: dict[str, Column] = {
        f"{shown[0].loss_is} loss": _metric(compared),
        shown[0].loss_heading: _beside(lambda one: _estimate(one.loss.difference, lambda found: gap(one, found.value))),
        "95 % interval": _beside(interval),
        _VERDICT: _beside(lambda one: words(one.loss.verdict)),
        "because": _beside(lambda one: "" if interval(one) else one.loss.reason),
        **({"final": _metric("final_loss")} if compared == "held_out" else {}),
        "first": _metric("first_loss"),
        "reduction": _metric("loss_reduction"),
        "lowest loss": _metric("best_loss"),
    }
    margin = shown[0].loss.margin
    text = f"Losses{unit}; equal: within {margin:.2g} of the baseline's, by two one-sided tests over repeats"
    if thinned := [one.thinned_to for one in curves_by_name.values() if one.thinned_to]:
        text += f"; curves are thinned to {min(thinned)} steps"
    return Section("Same learning?", f"{text}.", pictures, _conditions(results, looks, columns, shown))


_MEMORY: Final[Mapping[str, Column]] = {
    "reserved (GB)": _metric("mem_reserved_gb"),
    "of usable": _metric("mem_share"),
    "beside baseline": lambda one: "" if one.more_memory is None else f"{one.more_memory:+z.0%}",
    "allocated (GB)": _metric("mem_allocated_gb"),
    "on the device (GB)": _metric("mem_device_gb"),
    "host (GB)": _metric("mem_host_gb"),
    "usable (GB)": _metric("mem_usable_gb"),
    "at the end (GB)": _metric("mem_end_gb"),
}
_GPUS: Final[Mapping[str, Column]] = {
    "utilisation (%)": _metric("gpu_util_pct"),
    "power (W)": _metric("gpu_power_w"),
    "hottest (°C)": _metric("gpu_temperature_c"),
    "energy (kJ)": _metric("energy_j"),
    "J/token": _metric("j_per_token"),
    "peak over 1 s (W)": _metric("gpu_power_avg_peak_w"),
    "power-capped": _metric("gpu_power_capped"),
    "samples": _metric("gpu_samples"),
}


def _memory(results: Results, looks: Looks) -> Section:
    held = ("mem_reserved_gb", "mem_allocated_gb")
    shown = [one for one in results.comparisons if any(one.condition.value(name) is not None for name in held)]
    shown.sort(key=lambda one: one.condition.value(held[0]) or 0.0)
    text = "Peaks after the warm-up, of the rank that needs most; without a GPU, of a process. Host: of a node."
    return Section("Does it fit?", text, tables=_conditions(results, looks, _MEMORY, shown))


def _gpus(results: Results, looks: Looks) -> Section:
    shown = [one for one in results.comparisons if any(run.gpus.names for run in one.condition.runs)]
    text = "Samples of the timed steps, medians over repeats; energy is of whole attempts and all their GPUs."
    return Section("What did the GPUs do?", text, tables=_conditions(results, looks, _GPUS, shown))


def _settings(results: Results, looks: Looks) -> Section:
    effects = [(one, sensitivities(one.comparisons)) for one in results.workloads]
    changes = [(one.workload.name, change) for one, every in effects for change in every]
    columns: dict[str, Callable[[Any], TableCell | str]] = {
        **({"workload": lambda one: one[0]} if len(effects) > 1 else {}),
        "change": lambda one: one[1].change,
        "speed": lambda one: speed_effect(one[1]),
        "memory": lambda one: memory_effect(one[1]),
        "loss": lambda one: loss_effect(one[1]),
        "proven": lambda one: " and ".join(name for name, sure in one[1].proofs.items() if sure) or "nothing",
        "pairs": lambda one: TableCell(str(len(one[1].pairs)), len(one[1].pairs)),
    }
    text = "Over all pairs that differ in this alone: [95 % interval], (range over pairs)."
    return Section("What does each setting do?", text, tuple(axis_charts(results, looks)), table_of(columns, changes))


def axis_charts(results: Results, looks: Looks) -> Iterator[Chart]:
    """Yield a chart of the leading figure, loss or speed, along each numeric axis."""
    compared = results.comparisons
    if loss_leads := results.workloads[0].answer.lead is Objective.LOSS:
        held_out = compared[0].loss_is == "held-out"
        name, title = ("held_out", "held-out loss") if held_out else ("final_loss", "final loss")
    else:
        name, title = ("tokens_per_s", "tokens/s") if compared[0].in_tokens else ("step_s", "step (ms)")
    for axis in dict.fromkeys(name for each in compared for name in each.condition.params):
        if loss_leads and axis in WORK:  # losses of different work do not compare
            continue
        if chart := charts.along(compared, looks, axis, name, title):
            yield chart


Problem = tuple[str, Sequence[str], str, str]
"""What happened, how often and where, the reason of the first, and what was done."""


def problems(results: Results) -> Section:
    """A row for each cause: failures, doubts, conditions that are out for other causes, and remarks on the others."""
    failures = [one for run in results.runs for one in run.failures]
    rows: list[Problem] = []
    for same in alike(failures, lambda one: cause(one.kind, "", one.reason, one.run)):
        last = [failure for failure in same if failure.run == same[0].run][-1]
        rows.append((same[0].kind, [failure.run for failure in same], same[0].reason, last.then))
    for one in results.workloads:
        best = [one.answer.chosen.title] if one.answer.chosen else []
        about = {Why.VARIES: best, Why.LOSS_VARIES: best}  # the reason is that of the best, and may name others
        rows += [("not proven", about.get(doubt.code, doubt.names), doubt.text, "") for doubt in one.answer.doubts]
        rows += [("remark", remark.names, remark.text, "") for remark in one.answer.remarks]
        others = [
            (row.condition.title, row.why)
            for row in one.answer.rows
            if row.why and (row.why.code not in _ENDS or not any(run.failures for run in row.condition.runs))
        ]
        rows += [("out", names, reasons_text(reason), "") for names, reason in grouped_reasons(others)]
    rows += _remarks(results)
    columns: dict[str, Callable[[Problem], TableCell | str]] = {
        "what": lambda one: one[0],
        "how often": lambda one: TableCell(str(len(one[1]) or ""), len(one[1])),
        "where": lambda one: TableCell(some(list(dict.fromkeys(one[1])), 2), tip=", ".join(one[1][:40])),
        "reason, of the first": lambda one: one[2],
        "what was done": lambda one: one[3],
    }
    lost = sum(results.cost.lost.values()) / HOUR_S
    text = f"{count(len(failures), 'attempt')} failed" if failures else "No attempt failed"
    text += f"; {lost:.2g} {results.hour_unit} ({HOUR_S * lost / results.cost.total:.0%}) were lost." if lost else "."
    return Section("What went wrong?", text, tables=table_of(columns, rows))


_ENDS: Final = frozenset({Why.ENDED, Why.CHANGED})
"""Reasons against a condition that follow from failures."""


def _remarks(results: Results) -> Iterator[Problem]:
    """Yield remarks by kind; failures, and reasons against a condition, have rows already."""
    rows = [row for one in results.workloads for row in one.answer.rows]
    out = {run.name for row in rows if row.why and row.why.code is not Why.UNFINISHED for run in row.condition.runs}
    remarks: dict[str, list[tuple[str, str]]] = {}
    for run in results.runs:
        for kind, text in remarks_of(run).items():
            if run.name not in out or (run.completed and kind not in REASONS):
                remarks.setdefault(kind, []).append((run.name, text))
    for kind, same in remarks.items():
        yield kind, [name for name, _ in same], same[0][1], ""
    if silent := [run.name for run in results.runs if run.completed and run.step is None]:
        yield "no metrics", silent, no_metrics(silent), ""


def _last_figure(name: str, one: FollowUp) -> TableCell:
    return TableCell(figure(one[1][name], 5), one[1][name]) if name in one[1] else TableCell("")


def _follow_ups(results: Results) -> Section:
    names = dict.fromkeys(name for _, figures in results.follow_ups for name in figures)
    columns: dict[str, Callable[[Any], TableCell | str]] = {
        "follow-up": lambda one: one[0].name,
        "state": lambda one: str(one[0].state),
        **{name: partial(_last_figure, name) for name in names},
    }
    text = "Jobs of their own, after a run has completed: the last value of each metric."
    return Section("What did the follow-ups find?", text, tables=table_of(columns, results.follow_ups))


def _hours(results: Results) -> Section:
    cost = results.cost
    parts = [
        ("training steps that count", cost.training),
        ("warm-up and compiling", cost.warm_up),
        ("starting, evaluating, saving", cost.around),
        ("search for the micro-batch", cost.search),
        ("trials, follow-ups", cost.screening),
        ("step times unknown", cost.untimed),
        *((f"lost: {words(kind)}", value) for kind, value in cost.lost.items()),
    ]
    parts = [(name, value) for name, value in parts if value]
    columns: dict[str, Callable[[Any], TableCell | str]] = {
        "use": lambda use: use[0],
        results.hour_unit: lambda use: TableCell(f"{use[1] / HOUR_S:,.3f}", use[1]),
        "share": lambda use: f"{use[1] / cost.total:.1%}",
    }
    text = f"Queue wait, summed over attempts: {duration(cost.queued_s)}."
    if not cost.training and cost.untimed:
        text = f"Unknown: no step times were read. {text}"
    return Section("Where did the time go?", text, tables=table_of(columns, parts))
