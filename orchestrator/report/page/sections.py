"""The report as headings, sentences and tables: what the page and the Markdown file both show. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...views.text import duration, short_number
from ..compare.baseline import BaselineComparison
from ..compare.conditions import Condition
from ..compare.guide import guide
from ..compare.results import Results, WorkloadResults
from ..compare.statistics import LossTest
from ..compare.wording import difference, gigabytes, nats, percent, span, times, value
from ..measure.failures import Background
from ..measure.run import MeasuredRun
from . import tables
from .elements import Section, Table
from .environment import environment, failures
from .gpus import gpus
from .inputs import inputs
from .setup import setup
from .summary import summary

_INTERVAL_TEXT: Final = (
    "Intervals are those of the median over repeats, 95 % by bootstrap. With three repeats that is their range, which "
    "holds the true median three times in four."
)
_TO_LOSS_TEXT: Final = (
    "These differ in their tokens per step, so their losses at the end say nothing. What can be compared is how "
    "long they trained until their smoothed loss came down to what all of them reach: the time of steps alone, those "
    "of the warm-up counted as the median step."
)


def sections_of(results: Results, background: Background, ds_configs: dict[str, str]) -> list[Section]:
    """The report, from what matters most.

    Args:
        results: what to say.
        background: what stands behind it.
        ds_configs: by name of the condition, its rendered DeepSpeed configuration.
    """
    found = [
        Section("Summary", tuple(summary(results))),
        *(_conditions(one) for one in results.compared),
        *_time_to_loss(results),
        setup(results),
        tables.losses(results),
        tables.speed(results),
        inputs(results, background),
        tables.scaling(results),
        tables.memory(results),
        gpus(results, background),
        tables.quality(results),
        failures(background),
        tables.goodput(results),
        *(_recommendation(one, ds_configs) for one in results.compared),
        environment(results, background),
    ]
    return [section for section in found if section.text or section.tables or section.code]


def _conditions(one: WorkloadResults) -> Section:
    rows = [_condition_row(each) for each in one.judged]
    loss = one.judged[0].loss_is
    header = (
        "condition", "completed", "tries", "tokens/s", "interval", "× baseline", "speed", f"{loss} loss",
        "Δ loss", "loss", "memory", "MFU", "J/token",
    )  # fmt: skip
    text = [_compared_with(one)]
    if any(each.speed and each.speed.low is None for each in one.judged):
        text.append("An interval takes three repeats of a condition (`repeats: 3`); without it nothing is established.")
    if any(each.speed and each.speed.low is not None for each in one.judged):
        text.append(_INTERVAL_TEXT)
    title = f"Conditions: {one.workload.name}" if one.workload.name else "Conditions"
    return Section(title, tuple(text), (Table(header, tuple(rows), "-rrr-r-rr-rrr"),))


def _compared_with(one: WorkloadResults) -> str:
    baseline, conditions = one.workload.baseline, one.workload.conditions
    if not any(run.completed for condition in conditions for run in condition.runs):
        return f"Nothing has completed yet; {baseline.name} is the baseline."
    if not baseline.counted:
        return f"Nothing can be compared yet: no run of {baseline.name}, the baseline, has completed as the spec asks."
    return f"WorkloadResults with {baseline.name}, the baseline."


def _condition_row(one: BaselineComparison) -> tuple[str, ...]:
    condition = one.condition
    done = sum(run.completed for run in condition.runs)
    return (
        condition.name + (" (baseline)" if one.is_baseline else ""),
        f"{done}/{len(condition.runs)}" + (" changed" if any(run.changed for run in condition.runs) else ""),
        str(sum(run.tries for run in condition.runs)),
        short_number(one.speed.value) + ("" if one.in_tokens else " steps/s") if one.speed else "",
        span(one.speed),
        "" if not one.times_baseline else times(one.times_baseline) if not one.is_baseline else "1.00",
        "" if one.is_baseline else str(one.order),
        _loss_cell(condition, one.loss_is),
        difference(one.loss.difference) if one.loss.difference and not one.is_baseline else "",
        "" if one.is_baseline else loss_word(one.loss),
        gigabytes(condition.highest(lambda run: run.memory.reserved)),
        percent(condition.median(lambda run: run.timing.mfu if run.timing else None)),
        value(condition.median(lambda run: run.gpus.j_per_token)),
    )


def loss_word(test: LossTest) -> str:
    """What a comparison of losses has shown, with its margin."""
    return f"{test.verdict} (± {test.margin:.3f})" if not test.reason else f"{test.verdict}: {test.reason}"


def _loss_cell(condition: Condition, which: str) -> str:
    def loss(run: MeasuredRun) -> float | None:
        return run.loss.held_out if which == "held-out" else run.loss.final

    return nats(condition.loss(loss))


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
    yield Section(
        "Time to a loss",
        (_TO_LOSS_TEXT,),
        (Table(("condition", "loss", "training time", "tokens", "tokens a step"), rows, "-rrrr"),),
    )


def _recommendation(one: WorkloadResults, ds_configs: dict[str, str]) -> Section:
    said = one.recommendation
    title = f"Recommendation: {one.workload.name}" if one.workload.name else "Recommendation"
    text = [said.sentence]
    if len(said.front) > 1:
        text.append(f"None beats these in speed, memory and energy at once: {', '.join(said.front)}.")
    text += guide(one.judged, said)
    rows = tuple((name, why) for name, why in said.excluded.items())
    tables = (Table(("not considered", "because"), rows),) if rows else ()
    return Section(title, tuple(text), tables, code=ds_configs.get(said.chosen.name, "") if said.chosen else "")
