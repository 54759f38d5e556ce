"""The report as headings, sentences and tables: what the page and the Markdown file both show. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from dscampaign.orchestrator.campaign.counts import RunCounts
from dscampaign.orchestrator.formatting import duration, loss_number, short_number
from dscampaign.orchestrator.report.compare.advice import unread_config
from dscampaign.orchestrator.report.compare.baseline import BaselineComparison
from dscampaign.orchestrator.report.compare.feasible import is_screened_out
from dscampaign.orchestrator.report.compare.results import Results, WorkloadResults
from dscampaign.orchestrator.report.compare.wording import difference, loss_verdict, span, times
from dscampaign.orchestrator.report.measure.telemetry import GpuDetails

from . import tables
from .effects import effects
from .elements import Section, Table
from .screening import screening
from .setup import environment, failures, setup
from .summary import summary
from .sweeps import sweeps

_INTERVAL_TEXT: Final = (
    "Intervals are over repeats, 95 %: that of a median between two of its values; with three repeats it is their "
    "range, which holds the true median three times in four. Those of ratios hold for all conditions together: "
    "Student's t, Bonferroni."
)
_TO_LOSS_TEXT: Final = (
    "These differ in their tokens per step, so their losses at the end say nothing. What can be compared is how "
    "long they trained with a loss above one that all of them come down to: the time of steps alone, those "
    "of the warm-up counted as the median step."
)


def sections_of(results: Results, details: GpuDetails, ds_configs: dict[str, str]) -> list[Section]:
    """The report, the most important first; `ds_configs` has each condition's rendered DeepSpeed configuration."""
    found = [
        summary(results),
        *(_conditions(one) for one in results.workloads),
        *(section for one in results.workloads for section in effects(one, _titled("Effects", one))),
        *sweeps(results),
        *_time_to_loss(results),
        *screening(results),
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
    return replace(section, folded=True)


def _conditions(one: WorkloadResults) -> Section:
    rows = tuple(_condition_row(each) for each in one.comparisons if not is_screened_out(each.condition))
    loss, speed = one.comparisons[0].loss_is, one.comparisons[0].speed_unit
    header = (
        "condition", "completed", "tries in all", speed, "interval", "× baseline", "speed", f"{loss} loss",
        "Δ loss", "loss", "memory", "MFU", "J/token",
    )  # fmt: skip
    text = [_compared_with(one)]
    speeds = [each.speed for each in one.comparisons if each.speed]
    if any(speed.low is None for speed in speeds):
        text.append("An interval takes three repeats of a condition (`repeats: 3`); without it nothing is established.")
    if any(speed.low is not None for speed in speeds):
        text.append(_INTERVAL_TEXT)
    shown = (Table(header, rows, "-rrr-r-rr-rrr"),) if rows else ()  # all may be screened out
    return Section(_titled("Conditions", one), tuple(text), shown)


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
        condition.number("j_per_token"),
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
        difference(one.loss.difference.value, one.loss_unit) if one.loss.difference else "",
        loss_verdict(one.loss),
    )


def _time_to_loss(results: Results) -> Iterator[Section]:
    if not results.times:
        return
    rows = tuple(
        (
            time.condition.name,
            loss_number(time.loss, 3),
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
    rows = tuple(found.excluded.items())
    excluded = (Table(("not considered", "because"), rows),) if rows else ()
    code = ds_configs.get(found.chosen.name, "") if found.chosen else ""
    unread = unread_config(found.chosen) if found.chosen else ""
    text = (found.sentence, found.trade_off, *found.advice, unread)
    return Section(_titled("Recommendation", one), tuple(filter(None, text)), excluded, code=code)
