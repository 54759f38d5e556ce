"""The report as headings, sentences and tables: what the page and the Markdown file both show. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ...jobs.layout import CampaignPaths
from ..views.text import duration, short_number
from .cells import HOUR_S, deviation, gigabytes, kilojoules, listed, nats, part, percent, span, unit, value
from .conditions import Condition
from .facts import RunFacts
from .flags import flags_of
from .guide import guide
from .judge import Judged
from .results import Compared, Results
from .shapes import Section, Table
from .statistics import Estimate, LossTest
from .summary import summary

_TO_LOSS_TEXT: Final = (
    "These differ in their tokens per step, so their losses at the end say nothing. What can be compared is how "
    "long they trained until their smoothed loss came down to what all of them reach."
)
_SPEED_TEXT: Final = (
    "Milliseconds of an optimizer step, without the warm-up of each attempt; tokens/s are all tokens of the window by "
    "all of its time, over all ranks. Medians over repeats, ± their standard deviation; IQR and p99 are over steps."
)
_MEMORY_TEXT: Final = (
    "Highest of any rank and repeat: what tensors took, what PyTorch held, what the driver counted on the device."
)
_GPUS_TEXT: Final = (
    "Sampled over whole attempts. Utilisation says that some kernel ran, not how well: MFU is efficiency. Power "
    "is of one GPU, energy of all."
)


def sections_of(results: Results, ds_configs: dict[str, str]) -> list[Section]:
    """The report, from what matters most.

    Args:
        results: what to say.
        ds_configs: by name of the condition, its rendered DeepSpeed configuration.
    """
    found = [
        Section("Summary", tuple(summary(results))),
        *(_conditions(one) for one in results.compared),
        *_time_to_loss(results),
        _loss(results),
        _speed(results),
        _memory(results),
        _gpus(results),
        _quality(results),
        _goodput(results),
        *(_recommendation(one, ds_configs) for one in results.compared),
        _environment(results),
    ]
    return [section for section in found if section.text or section.tables or section.code]


def _conditions(one: Compared) -> Section:
    baseline = one.workload.baseline
    rows = [_condition_row(each) for each in one.judged]
    loss = one.judged[0].loss_is if one.judged else "held-out"
    header = (
        "condition", "completed", "tries", "tokens/s", "95 % interval", "× baseline", "speed", f"{loss} loss",
        "Δ loss", "loss", "memory", "MFU", "J/token",
    )  # fmt: skip
    text = [f"Compared with {baseline.name}, the baseline." if baseline else "Nothing has completed yet."]
    if any(each.speed and each.speed.low is None for each in one.judged):
        text.append("An interval takes three repeats of a condition (`repeats: 3`); without it nothing is established.")
    elif any(each.speed and each.speed.repeats == 3 for each in one.judged):
        text.append("With three repeats an interval is their range.")
    title = f"Conditions: {one.workload.name}" if one.workload.name else "Conditions"
    return Section(title, tuple(text), (Table(header, tuple(rows), "-rrr-r-rr-rrr"),))


def _condition_row(one: Judged) -> tuple[str, ...]:
    condition = one.condition
    done = sum(run.completed for run in condition.runs)
    return (
        condition.name + (" (baseline)" if one.is_baseline else ""),
        f"{done}/{len(condition.runs)}" + (" changed" if any(run.changed for run in condition.runs) else ""),
        str(sum(run.tries for run in condition.runs)),
        _speed_cell(condition, one.speed),
        span(one.speed),
        f"{one.times_baseline.value:.2f}" if one.times_baseline else "",
        "" if one.is_baseline else str(one.order),
        _loss_cell(condition, one.loss_is),
        f"{one.loss.difference.value:+.4f}" if one.loss.difference and not one.is_baseline else "",
        "" if one.is_baseline else loss_word(one.loss),
        gigabytes(condition.highest(lambda run: run.memory.reserved)),
        percent(condition.median(lambda run: run.timing.mfu if run.timing else None)),
        value(condition.median(lambda run: run.gpus.j_per_token)),
    )


def loss_word(test: LossTest) -> str:
    """What a comparison of losses has shown, with its margin."""
    return f"{test.verdict} (± {test.margin:.3f})" if not test.reason else f"{test.verdict}: {test.reason}"


def _speed_cell(condition: Condition, speed: Estimate | None) -> str:
    if speed is None:
        return ""
    steps = not all(run.timing.tokens_per_s for run in condition.counted if run.timing)
    return short_number(speed.value) + (" steps/s" if steps else "")


def _loss_cell(condition: Condition, which: str) -> str:
    def loss(run: RunFacts) -> float | None:
        return run.loss.held_out if which == "held-out" else run.loss.final

    return nats(condition.median(loss))


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


def _loss(results: Results) -> Section:
    rows = tuple(
        (
            condition.name,
            nats(condition.median(lambda run: run.loss.first)),
            nats(condition.median(lambda run: run.loss.final)),
            nats(condition.median(lambda run: run.loss.best)),
            nats(condition.median(lambda run: run.loss.held_out)),
        )
        for condition in results.conditions
        if condition.counted
    )
    text = ("In nats per token. Final is the mean over the last twentieth of the steps; medians over repeats.",)
    header = ("condition", "first", "final", "best step", "held out")
    return Section("Loss", text if rows else (), (Table(header, rows, "-rrrr"),) if rows else (), ("loss",))


def _speed(results: Results) -> Section:
    rows = tuple(_speed_row(condition) for condition in results.conditions if condition.median(_step_s))
    header = (
        "condition", "step ms", "± repeats", "IQR of steps", "p99", "tokens/s", "± repeats", "of a rank", "MFU",
        "repeats", "steps timed", "warm-up steps", "warm-up",
    )  # fmt: skip
    tables = (Table(header, rows, "-rrrrrrrrrrrr"),) if rows else ()
    return Section("Speed", (_SPEED_TEXT,) if rows else (), tables, ("step_time", "speed"))


def _speed_row(condition: Condition) -> tuple[str, ...]:
    timings = [run.timing for run in condition.counted if run.timing]
    ranks = condition.runs[0].world_size
    step_ms = condition.median(lambda run: 1e3 * run.timing.step_s if run.timing else None)
    tokens = condition.median(lambda run: run.timing.tokens_per_s if run.timing else None)
    return (
        condition.name,
        value(step_ms),
        deviation(step_ms),
        value(condition.median(lambda run: 1e3 * run.timing.iqr_s if run.timing else None), digits=3),
        value(condition.median(lambda run: 1e3 * run.timing.p99_s if run.timing else None)),
        short_number(tokens.value) if tokens else "",
        deviation(tokens),
        short_number(tokens.value / ranks) if tokens and ranks > 1 else "",
        percent(condition.median(lambda run: run.timing.mfu if run.timing else None)),
        str(len(timings)),
        f"{sum(timing.steps for timing in timings):,}",
        f"{sum(timing.warm_up_steps for timing in timings):,}",
        duration(sum(timing.warm_up_s for timing in timings)),
    )


def _step_s(run: RunFacts) -> float | None:
    return run.timing.step_s if run.timing else None


def _memory(results: Results) -> Section:
    rows = tuple(
        (
            condition.name,
            gigabytes(condition.highest(lambda run: run.memory.allocated)),
            gigabytes(condition.highest(lambda run: run.memory.reserved)),
            gigabytes(condition.highest(lambda run: run.memory.device)),
            gigabytes(condition.highest(lambda run: run.memory.usable)),
            part(condition.highest(lambda run: run.memory.share)),
        )
        for condition in results.conditions
        if condition.highest(lambda run: run.memory.reserved or run.memory.allocated) is not None
    )
    header = ("condition", "allocated", "reserved", "device", "usable", "reserved of usable")
    return Section(
        "Memory", (_MEMORY_TEXT,) if rows else (), (Table(header, rows, "-rrrrr"),) if rows else (), ("memory",)
    )


def _gpus(results: Results) -> Section:
    rows = tuple(
        (
            condition.name,
            value(condition.median(lambda run: run.gpus.util_pct), " %", 3),
            value(condition.median(lambda run: run.gpus.power_w), " W", 3),
            value(condition.median(lambda run: run.gpus.power_peak_w), " W", 3),
            value(condition.median(lambda run: run.gpus.power_avg_peak_w), " W", 3),
            value(condition.median(lambda run: run.gpus.temperature_c), " °C", 3),
            kilojoules(condition.median(lambda run: run.gpus.energy_j)),
            value(condition.median(lambda run: run.gpus.j_per_token)),
            part(condition.highest(lambda run: run.gpus.power_capped)),
        )
        for condition in results.conditions
        if any(run.gpus.names for run in condition.runs)
    )
    header = (
        "condition", "utilisation", "power", "peak", "peak over 1 s", "hottest", "energy kJ", "J/token", "power-capped",
    )  # fmt: skip
    return Section(
        "GPUs", (_GPUS_TEXT,) if rows else (), (Table(header, rows, "-rrrrrrrr"),) if rows else (), ("gpus",)
    )


def _quality(results: Results) -> Section:
    rows = tuple(_quality_row(run) for run in results.runs if run.step is not None or flags_of(run))
    header = (
        "run", "state", "steps expected", "received", "repeated", "not finite", "skipped", "allocator retries",
        "waited for data", "remarks",
    )  # fmt: skip
    return Section("Data quality", (), (Table(header, rows, "--rrrrrrr-"),) if rows else ())


def _quality_row(run: RunFacts) -> tuple[str, ...]:
    quality = run.quality
    return (
        run.name,
        str(run.state),
        f"{quality.expected:,}" if quality.expected else "",
        f"{quality.received:,}",
        f"{quality.repeated:,}" if quality.repeated else "",
        f"{quality.non_finite:,}" if quality.non_finite else "",
        f"{quality.skipped_steps:,}" if quality.skipped_steps else "",
        f"{quality.alloc_retries:,}" if quality.alloc_retries else "",
        f"{quality.data_wait:.1%}" if quality.data_wait else "",
        "; ".join(flags_of(run)),
    )


def _goodput(results: Results) -> Section:
    cost = results.cost
    if not cost.total:
        return Section("Goodput")
    parts = [("training steps that count", cost.training), ("starting, compiling, evaluating, saving", cost.around)]
    parts += [(f"lost to {kind.replace('_', ' ')}", value) for kind, value in cost.lost.items()]
    rows = tuple((what, f"{value / HOUR_S:,.3f}", f"{value / cost.total:.1%}") for what, value in parts)
    text = (f"{unit(results.runs)} of all attempts, which waited {duration(cost.queued_s)} in the queue, added up.",)
    return Section("Goodput", text, (Table(("what", unit(results.runs), "share"), rows, "-rr"),), ("goodput",))


def _recommendation(one: Compared, ds_configs: dict[str, str]) -> Section:
    said = one.recommendation
    title = f"Recommendation: {one.workload.name}" if one.workload.name else "Recommendation"
    text = [said.sentence]
    if len(said.front) > 1:
        text.append(f"None beats these in speed, memory and energy at once: {', '.join(said.front)}.")
    text += guide(one.judged, said)
    rows = tuple((name, why) for name, why in said.excluded.items())
    tables = (Table(("not considered", "because"), rows),) if rows else ()
    return Section(title, tuple(text), tables, code=ds_configs.get(said.chosen.name, "") if said.chosen else "")


def _environment(results: Results) -> Section:
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run in results.runs:
        if run.software or run.gpus.names:
            device = {"GPU": ", ".join(run.gpus.names)} if run.gpus.names else {}
            groups.setdefault(tuple({**run.software, **device}.items()), []).append(run.name)
    facts = {**results.campaign.provenance, "executor": results.campaign.executor, "folder": results.campaign.dir}
    campaign = tuple((name, str(value)) for name, value in facts.items() if value)
    tables = [Table(("campaign", ""), campaign)]
    tables += [Table((listed(names, 4), ""), tuple(facts)) for facts, names in groups.items()]
    tables += [Table(("run", "logs of its newest attempt"), tuple(_logs(results)))]
    return Section("Environment", (), tuple(tables))


def _logs(results: Results) -> Iterator[tuple[str, str]]:
    paths = CampaignPaths(Path(results.campaign.dir), results.campaign.name)
    for run in results.runs:
        if run.generation:
            yield run.name, str(paths.run(run.name).attempt(run.generation).logs)
