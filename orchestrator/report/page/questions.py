"""The questions of the page, each with its sentence, chart and table. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from dscampaign.orchestrator.campaign.status import no_metrics
from dscampaign.orchestrator.failures.groups import alike
from dscampaign.orchestrator.formatting import count, duration, loss_number, short_number, some, words
from dscampaign.orchestrator.report.compare.baseline import BaselineComparison
from dscampaign.orchestrator.report.compare.conditions import unlike_machines
from dscampaign.orchestrator.report.compare.ranking import pace
from dscampaign.orchestrator.report.compare.reasons import grouped_reasons, reasons_text
from dscampaign.orchestrator.report.compare.results import Results, WorkloadResults
from dscampaign.orchestrator.report.compare.scaling import scaling_of
from dscampaign.orchestrator.report.compare.sensitivity import (
    certainties,
    change_in_words,
    confounded,
    loss_effect,
    memory_effect,
    pair_names,
    sensitivities,
    speed_effect,
)
from dscampaign.orchestrator.report.compare.statistics import Estimate
from dscampaign.orchestrator.report.compare.wording import difference, span, times
from dscampaign.orchestrator.report.measure.flags import remarks_of
from dscampaign.orchestrator.report.measure.metrics import METRICS
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.report.measure.telemetry import GpuDetails
from dscampaign.orchestrator.spec.effects import WORK
from dscampaign.orchestrator.spec.objective import Objective

from . import charts
from .curves import Curves, curves_of
from .elements import Cell, Chart, Section, Table, table_of
from .looks import Looks

MOST_ROWS: Final = 120
"""Rows of a table; a data file has all."""

MOST_WORKLOADS: Final = 6
"""So many have charts; more have the tables."""

HOUR_S: Final = 3600.0

Column = Callable[[BaselineComparison], Cell]


def questions(results: Results, details: GpuDetails, looks: Looks, first: Chart | None) -> Iterator[Section]:
    """Yield the sections between the first screen, whose chart `first` they leave out, and the details."""
    for section in _questions(results, details, looks):
        yield replace(section, charts=tuple(chart for chart in section.charts if not first or chart.name != first.name))


def _questions(results: Results, details: GpuDetails, looks: Looks) -> Iterator[Section]:
    drawn = results.workloads[:MOST_WORKLOADS]
    yield _speed(results, looks, drawn)
    yield _learning(results, looks, drawn)
    yield _memory(results, looks, drawn)
    yield _settings(results, looks)
    yield _scaling(results, looks)
    yield _time_to_loss(results, looks)
    yield problems(results)
    yield _hours(results)
    yield _gpus(results, details, looks)


def named(one: BaselineComparison, looks: Looks) -> Cell:
    """The cell that names a condition."""
    look = looks[one.condition.name]
    return Cell(look.title, note="baseline" if one.is_baseline else "", tip=look.name, colour=look.colour)


def conditions_table(
    results: Results, looks: Looks, columns: Mapping[str, Column], shown: Sequence[BaselineComparison], main: int = 7
) -> Table:
    """Return a row for each condition, with its workload if there are several."""
    workloads = {each.condition.name: one.workload.name for one in results.workloads for each in one.comparisons}
    several = len(results.workloads) > 1
    rows = [(named(one, looks), *(cell(one) for cell in columns.values())) for one in shown]
    if several:
        rows = [(row[0], Cell(workloads[one.condition.name]), *row[1:]) for one, row in zip(shown, rows, strict=True)]
    header = ("condition", *(["workload"] if several else []), *columns)
    right = "".join("r" if any(row[i].value is not None for row in rows) else "-" for i in range(len(header)))
    more = max(0, len(rows) - MOST_ROWS)
    if len(rows) > MOST_ROWS:  # the data files have the other columns
        header, rows = header[:main], [row[:main] for row in rows[:MOST_ROWS]]
    return Table(header, tuple(rows), right, main, more, "conditions.csv")


def metric(name: str, *, unit: bool = False) -> Column:
    """Return the cell of a metric over a condition's repeats; without `unit` the header has it."""
    text = METRICS[name].text if unit else METRICS[name].number

    def cell(one: BaselineComparison) -> Cell:
        value = one.condition.value(name)
        return Cell(text(value), value if value is not None and math.isfinite(value) else None)

    return cell


def text(of: Callable[[BaselineComparison], str]) -> Column:
    """Return a cell of text."""
    return lambda one: Cell(of(one))


def _estimate(found: Estimate | None, words: Callable[[Estimate], str]) -> Cell:
    return Cell(words(found), found.value) if found else Cell("")


def _charts(drawn: Sequence[WorkloadResults], make: Callable[[WorkloadResults], Chart | None]) -> tuple[Chart, ...]:
    """Small multiples: the chart of each workload, with its name."""
    found = [(place, one, make(one)) for place, one in enumerate(drawn, 1)]
    return tuple(of_workload(chart, one, place, len(drawn)) for place, one, chart in found if chart)


def of_workload(chart: Chart, one: WorkloadResults, place: int, several: int) -> Chart:
    """The chart, with the workload in its name and title if there are several."""
    if several < 2:
        return chart
    return Chart(f"{chart.name}_{place}", f"{one.workload.name}: {chart.title}", chart.spec, chart.across)


def _speed(results: Results, looks: Looks, drawn: Sequence[WorkloadResults]) -> Section:
    shown = sorted((one for one in results.comparisons if one.speed), key=pace, reverse=True)
    if not shown:
        return Section("How fast?")
    columns = {
        shown[0].speed_unit: lambda one: _estimate(one.speed, lambda found: short_number(found.value)),
        "interval": text(lambda one: span(one.speed)),
        "× baseline": lambda one: _estimate(None if one.is_baseline else one.times_baseline, times),
        "verdict": text(lambda one: "" if one.is_baseline else str(one.order)),
        "step (ms)": metric("step_s"),
        "MFU": metric("mfu"),
        "mean (ms)": metric("step_mean_s"),
        "σ of steps (ms)": metric("step_std_s"),
        "IQR of steps (ms)": metric("step_iqr_s"),
        "p99 (ms)": metric("step_p99_s"),
        "tokens/s of a rank": text(_of_a_rank),
        "samples/s": metric("samples_per_s"),
        "tokens/s per GB": metric("tokens_per_s_per_gb"),
        "epoch": metric("epoch_s"),
        "repeats": text(lambda one: str(sum(run.timing is not None for run in one.condition.counted))),
        "steps timed": metric("steps_timed"),
        "window": metric("window_s", unit=True),
        "warm-up steps": metric("warm_up_steps"),
        "warm-up": metric("warm_up_s"),
    }
    beside = [f"{looks[one.workload.baseline.name].title} ({one.workload.because})" for one in results.workloads]
    over = "rounds, which differ" if any(one.rounds for one in results.comparisons) else "repeats"
    said = (
        f"Medians after the warm-up; × baseline is of geometric means over {over}; the baseline is {some(beside, 3)}."
    )
    table = conditions_table(results, looks, columns, shown)
    return Section("How fast?", said, _charts(drawn, lambda one: charts.speeds(one, looks)), (table,))


def _of_a_rank(one: BaselineComparison) -> str:
    tokens, ranks = one.condition.value("tokens_per_s"), one.condition.ranks
    return short_number(tokens / ranks) if tokens is not None and ranks > 1 else ""


def curves(one: WorkloadResults, looks: Looks, several: int) -> Curves:
    """The curves of a workload, with its share of the page."""
    return curves_of(one, looks, 1 / min(several, MOST_WORKLOADS))


def _learning(results: Results, looks: Looks, drawn: Sequence[WorkloadResults]) -> Section:
    unit = " (nats)" if not any(one.condition.own_loss for one in results.comparisons) else ""
    found = {id(one): curves(one, looks, len(drawn)) for one in drawn}
    pictures = _charts(drawn, lambda one: charts.losses(found[id(one)], looks, unit))
    pictures += _charts(drawn, lambda one: charts.loss_differences(found[id(one)], looks, unit))
    shown = sorted((one for one in results.comparisons if one.condition.counted), key=_loss)
    if not shown:
        return Section("Same learning?", charts=pictures)
    columns = {
        f"{shown[0].loss_is} loss": lambda one: metric(_compared_loss(one))(one),
        "Δ baseline": _apart,
        "95 % interval": text(_loss_interval),
        "verdict": text(lambda one: "" if one.is_baseline else str(one.loss.verdict)),
        "because": text(lambda one: "" if one.is_baseline else one.loss.reason),
        "final": metric("final_loss"),
        "first": metric("first_loss"),
        "reduction": metric("loss_reduction"),
        "lowest loss": metric("best_loss"),
        "held out": metric("held_out"),
    }
    margin = shown[0].loss.margin
    said = f"Losses{unit}; equivalent: within {margin:.2g} of the baseline's, by two one-sided tests over repeats."
    if thinned := [one.thinned_to for one in found.values() if one.thinned_to]:
        said = f"{said[:-1]}; curves are thinned to {min(thinned)} steps."
    return Section("Same learning?", said, pictures, (conditions_table(results, looks, columns, shown, 6),))


def _compared_loss(one: BaselineComparison) -> str:
    """The name of the loss that is compared."""
    return "held_out" if one.loss_is == "held-out" else "final_loss"


def _loss(one: BaselineComparison) -> float:
    found = one.condition.value(_compared_loss(one))
    return math.inf if found is None or math.isnan(found) else found


def _apart(one: BaselineComparison) -> Cell:
    found = None if one.is_baseline else one.loss.difference
    return _estimate(found, lambda known: difference(known.value, one.loss, one.loss_unit))


def _loss_interval(one: BaselineComparison) -> str:
    found = one.loss.difference
    if one.is_baseline or not found or found.low is None or found.high is None:
        return ""
    return f"{difference(found.low, one.loss, one.loss_unit)} to {difference(found.high, one.loss, one.loss_unit)}"


def _memory(results: Results, looks: Looks, drawn: Sequence[WorkloadResults]) -> Section:
    held = ("mem_reserved_gb", "mem_allocated_gb")
    shown = [one for one in results.comparisons if any(one.condition.value(name) is not None for name in held)]
    if not shown:
        return Section("Does it fit?")
    columns = {
        "reserved (GB)": metric("mem_reserved_gb"),
        "of usable": metric("mem_share"),
        "beside baseline": text(lambda one: "" if one.more_memory is None else f"{one.more_memory:+.0%}"),
        "allocated (GB)": metric("mem_allocated_gb"),
        "on the device (GB)": metric("mem_device_gb"),
        "host (GB)": metric("mem_host_gb"),
        "usable (GB)": metric("mem_usable_gb"),
        "with warm-up (GB)": metric("mem_higher_peak_gb"),
        "at the end (GB)": metric("mem_end_gb"),
        "persistent parameters": metric("persistent_parameters"),
        "their elements": metric("persistent_elements"),
    }
    said = "Peaks after the warm-up, highest of any rank and repeat; host memory is of a node."
    if results.only_cpus:
        said = "These runs were on CPUs: the memory of a rank's process, with the program itself."
    shown.sort(key=lambda one: one.condition.value(held[0]) or 0.0)
    table = conditions_table(results, looks, columns, shown)
    return Section("Does it fit?", said, _charts(drawn, lambda one: charts.memories(one, looks)), (table,))


def _settings(results: Results, looks: Looks) -> Section:
    """The effect of each axis."""
    rows, remarks, several = [], list[str](), len(results.workloads) > 1
    for one in results.workloads:
        changes = sensitivities(one.comparisons)
        remarks += confounded(one.comparisons, changes)
        for change in changes:
            sure = certainties(change)
            alike = len(set(sure.values())) == 1
            certainty = next(iter(sure.values())) if alike else ", ".join(f"{name} {how}" for name, how in sure.items())
            row = (change_in_words(change), speed_effect(change), memory_effect(change), loss_effect(change), certainty)
            pairs = Cell(str(len(change.pairs)), len(change.pairs), tip=pair_names(change))
            rows.append((*([one.workload.name] if several else []), *row, pairs))
    header = (*(["workload"] if several else []), "change", "speed", "memory", "loss", "certainty", "pairs")
    pictures = tuple(axis_charts(results, looks))
    said = next(iter(remarks), "Over all pairs that differ in this alone: [95 % interval], (range over pairs).")
    tables = (table_of(header, rows, "-" * (len(header) - 1) + "r"),) if rows else ()
    return Section("What does each setting do?", said, pictures, tables)


def axis_charts(results: Results, looks: Looks) -> Iterator[Chart]:
    """Yield charts along each numeric axis: the loss first if an axis changes what is learned."""
    compared = results.comparisons
    speed = "tokens_per_s" if compared[0].in_tokens else "step_s"
    loss = "held_out" if compared[0].loss_is == "held-out" else "final_loss"
    figures = {speed: "tokens/s" if compared[0].in_tokens else "step (ms)", "mem_reserved_gb": "memory (GB)"}
    titles = {"held_out": "held-out loss", "final_loss": "final loss"}
    first = {loss: titles[loss]} if results.workloads[0].answer.lead is Objective.LOSS else {}
    figures = {**first, **figures, loss: titles[loss]}
    names = dict.fromkeys(name for each in compared for name in each.condition.params)
    for axis in names:
        for name, title in figures.items():
            if name == loss and axis in WORK:  # losses of different work do not compare
                continue
            if chart := charts.along(compared, looks, axis, name, title):
                yield chart


def _scaling(results: Results, looks: Looks) -> Section:
    rows = [
        (
            Cell(looks[one.condition.name].title, tip=one.condition.name, colour=looks[one.condition.name].colour),
            str(one.ranks),
            one.keeps,
            short_number(one.tokens_per_s),
            short_number(one.tokens_per_s / one.ranks),
            f"{one.efficiency:.0%}",
            "" if one.condition is one.reference else looks[one.reference.name].title,
        )
        for one in scaling_of(results.conditions)
    ]
    said = "Efficiency is the speed of a rank as a share of its speed with the fewest ranks."
    header = ("condition", "ranks", "keeps", "tokens/s", "of a rank", "efficiency", "beside")
    return Section("Does it scale?", said, tables=(table_of(header, rows, "-r-rrr-"),) if rows else ())


def _time_to_loss(results: Results, looks: Looks) -> Section:
    rows = [
        (
            Cell(looks[time.condition.name].title, tip=time.condition.name, colour=looks[time.condition.name].colour),
            loss_number(time.loss, 3),
            Cell("never" if time.seconds is None else duration(time.seconds), time.seconds),
            short_number(time.tokens),
            short_number(time.condition.tokens_per_step),
        )
        for time in results.times
    ]
    said = "Batches differ, so what compares is the training time with a loss above a level that all reach."
    header = ("condition", "loss", "training time", "tokens", "tokens a step")
    return Section("How soon at the same loss?", said, tables=(table_of(header, rows, "-rrrr"),) if rows else ())


def problems(results: Results) -> Section:
    """Failures by cause, then doubts, conditions that are out, and remarks by kind."""
    failed = alike((one for run in results.runs for one in run.failures), lambda one: (one.kind, one.reaction))
    rows = [(same[0].kind, [one.run for one in same], same[0].reason, same[0].then) for same in failed]
    for one in results.workloads:
        rows += [("not proven", list(doubt.names), doubt.text, "") for doubt in one.answer.doubts]
        rows += [("remark", list(remark.names), remark.text, "") for remark in one.answer.remarks]
        against = [(row.condition.title, row.why) for row in one.answer.rows if row.why]
        rows += [("out", list(names), reasons_text(why), "") for names, why in grouped_reasons(against)]
    rows += [
        ("different machines", [one.title], how, "") for one in results.conditions if (how := unlike_machines(one))
    ]
    remarks: dict[str, list[tuple[str, str]]] = {}
    for run in results.runs:
        for kind, said in remarks_of(run).items():
            remarks.setdefault(kind, []).append((run.name, said))
    rows += [(kind, [name for name, _ in same], same[0][1], "") for kind, same in remarks.items()]
    if silent := [run.name for run in results.runs if run.silent]:
        rows.append(("no metrics", silent, no_metrics(silent), ""))
    cells = [
        (kind, Cell(str(len(names) or ""), len(names)), Cell(some(names, 2), tip=", ".join(names[:40])), why, then)
        for kind, names, why, then in rows
    ]
    header = ("what", "how often", "where", "reason, of the first", "what was done")
    lost = sum(results.cost.lost.values()) / HOUR_S
    said = f"{count(sum(map(len, failed)), 'attempt')} failed"
    said += f"; {lost:.2g} {results.hour_unit} ({HOUR_S * lost / results.cost.total:.0%}) were lost." if lost else "."
    return Section("What went wrong?", said, tables=(table_of(header, cells, "-r---"),) if cells else ())


def _hours(results: Results) -> Section:
    cost = results.cost
    if not cost.total:
        return Section("Where did the time go?")
    parts = [
        ("training steps that count", cost.training),
        ("warm-up and compiling", cost.warm_up),
        ("starting, evaluating, saving", cost.around),
        ("search for the micro-batch", cost.search),
        ("screening", cost.screening),
        ("step times unknown", cost.untimed),
    ]
    parts = [(name, value) for name, value in parts if value]
    parts += [(f"lost: {words(kind)}", value) for kind, value in cost.lost.items()]
    rows = [
        (name, Cell(f"{value / HOUR_S:,.3f}", value), Cell(f"{value / cost.total:.1%}", value)) for name, value in parts
    ]
    said = f"Queue wait, summed over attempts: {duration(cost.queued_s)}."
    table = table_of(("use", results.hour_unit, "share"), rows, "-rr")
    return Section("Where did the time go?", said, (charts.hours(results, parts),), (table,))


def _gpus(results: Results, details: GpuDetails, looks: Looks) -> Section:
    shown = [one for one in results.comparisons if any(run.gpus.names for run in one.condition.runs)]
    if not shown:
        return Section("What did the GPUs do?")
    columns = {
        "utilisation (%)": metric("gpu_util_pct"),
        "power (W)": metric("gpu_power_w"),
        "hottest (°C)": metric("gpu_temperature_c"),
        "energy (kJ)": metric("energy_j"),
        "J/token": metric("j_per_token"),
        "CPU load (%)": metric("cpu_busy_pct"),
        "peak power (W)": metric("gpu_power_peak_w"),
        "peak over 1 s (W)": metric("gpu_power_avg_peak_w"),
        "coolest (°C)": metric("gpu_temperature_min_c"),
        "power-capped": metric("gpu_power_capped"),
        "samples": metric("gpu_samples"),
        "every (s)": metric("gpu_interval_s"),
    }
    said = "Samples of the timed steps, medians over repeats; energy is of whole attempts and all their GPUs."
    of_run = {run.name: one.name for one in results.conditions for run in one.runs}
    pictures = charts.gpus(details.traces, looks, of_run) if details.traces else ()
    return Section("What did the GPUs do?", said, pictures, (conditions_table(results, looks, columns, shown),))


MOST_SAMPLED: Final = 3
"""So many runs have their GPUs drawn over time."""


def sampled_runs(results: Results) -> list[MeasuredRun]:
    """Return the runs whose GPUs are drawn over time: of the fastest conditions, the baselines, then the others."""
    fastest = [one.answer.fastest for one in results.workloads]
    baselines = [one.workload.baseline for one in results.workloads]
    ordered = {one.name: one for one in (*fastest, *baselines, *results.conditions) if one}
    sampled = (next((run for run in one.runs if run.gpus.names and run.attempt_id), None) for one in ordered.values())
    return [run for run in sampled if run][:MOST_SAMPLED]
