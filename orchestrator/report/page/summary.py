"""What a reader wants to know first: what to use, how sure that is, what it costs, and what failed. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dscampaign.db.states import RunState
from dscampaign.orchestrator.campaign.code_text import mixed_code
from dscampaign.orchestrator.campaign.counts import RunCounts
from dscampaign.orchestrator.campaign.status import no_metrics
from dscampaign.orchestrator.failures.groups import alike, gist
from dscampaign.orchestrator.formatting import count, shorten, some
from dscampaign.orchestrator.report.compare.baseline import BaselineComparison, speed_text
from dscampaign.orchestrator.report.compare.conditions import unlike_machines
from dscampaign.orchestrator.report.compare.feasible import is_screened_out
from dscampaign.orchestrator.report.compare.ignored_axes import ignored_axes
from dscampaign.orchestrator.report.compare.objectives import TIED, Answer
from dscampaign.orchestrator.report.compare.results import Results, WorkloadResults
from dscampaign.orchestrator.report.compare.statistics import Sameness
from dscampaign.orchestrator.report.compare.wording import difference
from dscampaign.orchestrator.report.measure.cost import OTHER_CONFIGURATION
from dscampaign.orchestrator.report.measure.flags import flags_of

from .elements import Section, Table
from .figures import first_of_losses, pictures
from .tables import HOUR_S

_WHY: Final = 120
"""Characters of a reason in a sentence; the whole text stands in a table."""

_NUMBER: Final = re.compile(r"(?<![\w./:-])([+-]?\d+(?:\.\d+)?(?:e-\d+)?)(?!\w|[./:-]\w)")
"""One that stands for itself, not part of a name or a path."""

_MOST_SAID: Final = 3
"""So many workloads have their sentences on the first screen; more have the table."""

_SEVERAL: Final = "What a speed or a loss of one workload is beside that of another says nothing."


_ANSWERS: Final = ("for", "use", "figure", "ahead of", "by", "which is")


def summary(results: Results) -> Section:
    """The section that a page begins with; of several workloads it has a table of what to use for each."""
    found = pictures("speed_memory", results) + pictures(first_of_losses(results), results)
    figures = tuple(
        sorted(found, key=lambda one: "".join(filter(str.isdigit, one.name)).zfill(2))
    )  # those of a workload side by side
    lead, told, number = tuple(map(_answer, results.workloads)), tuple(what_happened(results)), len(results.workloads)
    if number <= 1:
        return Section("Summary", told, figures=figures, lead=lead)
    if number > _MOST_SAID:
        lead = ((f"{number} workloads: the table says what to use for each, Recommendation why.",),)
    answers = (answer_table(results.workloads),)
    return Section("Summary", (_SEVERAL, *told), answers, figures, lead=lead, tables_first=number > _MOST_SAID)


def summary_lines(results: Results) -> list[str]:
    """The same as sentences alone."""
    return [*(sentence for one in results.workloads for sentence in _answer(one)), *what_happened(results)]


def next_best(found: Answer) -> str:
    """What comes next after what is recommended, and whether the repeats show it."""
    if found.shown == TIED:
        return f"{found.runner_up} is on a par{f' ({found.gain})' if found.gain else ''}."
    if found.level:
        return f"{found.runner_up} looks on a par ({', '.join(filter(None, (found.gain, found.shown)))})."
    behind = f", behind by {found.gain}" if found.gain else ""
    return f"Next comes {found.runner_up}{behind} ({found.shown})."


def answer_table(workloads: Sequence[WorkloadResults]) -> Table:
    """A row a workload: what was chosen, its figure, and what comes next."""
    return Table(_ANSWERS, tuple(map(_answer_row, workloads)))


def _answer_row(one: WorkloadResults) -> tuple[str, ...]:
    found = one.recommendation.answer
    if found is None:
        undecided = one.recommendation.undecided
        return one.workload.name, "", "", "", "", "loss or speed must decide" if undecided else "nothing can be said"
    if len(one.comparisons) == 1:
        return one.workload.name, found.condition, found.figure, "–", "–", "the only one"
    return one.workload.name, found.condition, found.figure, found.runner_up, found.gain, found.shown


def _answer(one: WorkloadResults) -> tuple[str, ...]:
    said = one.recommendation
    told = [said.chosen] if said.chosen else [said.fastest, said.learner] if said.undecided else []
    shown = (each for each in one.comparisons if any(each.condition is other for other in told))
    return (
        ": ".join(filter(None, (one.workload.name, said.sentence))),
        *(f"{each.condition.name}: {costs}." for each in shown if (costs := _costs(each, said.sentence))),
        *([next_best(said.answer)] if said.answer and said.answer.runner_up else []),
    )


def _costs(one: BaselineComparison, said: str) -> str:
    """What a condition gives and takes that is not ``said`` yet: `72.9k [72.5k, 83k] tokens/s, 7.2 GB a GPU, …`."""
    condition, parts = one.condition, []
    if one.speed and speed_text(one) not in said:
        parts.append(speed_text(one))
    if used := condition.text("mem_reserved_gb"):
        parts.append(f"{used} a GPU" if condition.runs[0].on_gpus else f"{used} of memory")
    if energy := condition.number("j_per_token"):
        parts.append(f"{energy} J/token")
    if loss := condition.number("held_out" if one.loss_is == "held-out" else "final_loss"):
        beside = one.loss.difference if not one.is_baseline else None
        than = f" ({difference(beside.value, one.loss_unit)} beside the baseline, {one.loss.verdict})" if beside else ""
        parts.append(f"{one.loss_is} loss {loss}{than}")
    return ", ".join(parts)


def what_happened(results: Results) -> Iterator[str]:
    """How many runs completed and what they took, what failed, and what has to be read with care."""
    runs = results.runs
    counts = RunCounts.of(runs)
    devices = ", ".join(dict.fromkeys(name for run in runs for name in run.device_names))
    screened = counts.states.get(RunState.SCREENED, 0)
    left_out = f", {screened:,} screened out" if screened else ""
    yield (
        f"{counts.completed} of {count(counts.total, 'run')} completed{counts.note}{left_out}, "
        f"in {count(len(results.conditions), 'condition')}; "
        f"{_hours(results.cost.total, results.hour_unit)}{f' on {devices}' if devices else ''}."
    )
    yield from what_failed(results)
    if results.only_cpus:
        yield "All on CPUs: their speeds and their memory say nothing about GPUs."
    yield from _reservations(results)


def what_failed(results: Results) -> Iterator[str]:
    """In one line the attempts that failed, by class, the runs that came to nothing, and the time that was lost.

    That of attempts which ran before their experiment was changed is told apart: they may have ended well.
    """
    classes = Counter(one.kind for run in results.runs for one in run.failures)
    ended = [run.name for run in results.runs if run.state in ("failed", "held")]
    said = []
    if classes:
        which = ", ".join(f"{number} × {kind}" if number > 1 else kind for kind, number in classes.most_common())
        said.append(f"{count(classes.total(), 'attempt')} failed ({shorten(which, _WHY)})")
    if ended:
        said.append(f"{count(len(ended), 'run')} did not complete ({some(ended, 3)})")
    earlier = results.cost.lost.get(OTHER_CONFIGURATION, 0.0)
    if lost := sum(results.cost.lost.values()) - earlier:
        said.append(f"{_part(lost, results)} lost to attempts that failed or were cancelled")
    if earlier:
        said.append(f"{_part(earlier, results)} spent on attempts of earlier configurations")
    if said:
        yield f"{'; '.join(said)}."


def _reservations(results: Results) -> Iterator[str]:
    chosen = [one.recommendation for one in results.workloads if one.recommendation.fastest]
    out = {one.name for one in results.conditions if is_screened_out(one)}
    if excluded := {name: why for one in chosen for name, why in one.excluded.items() if name not in out}:
        yield f"Not considered: {some(list(_causes(excluded)), 4)}."
    worse = [one for one in results.comparisons if one.loss.verdict == Sameness.WORSE]
    if others := [one.condition.name for one in worse if not one.is_baseline]:
        yield f"Learned worse than the baseline: {some(others)}."
    if diverged := [one.condition.name for one in worse if one.is_baseline]:
        yield f"The loss of the baseline is not finite: {some(diverged)}."
    if early := [run.name for run in results.runs if run.early]:
        yield f"Completed early, before the target step: {some(early)}. Left out of comparisons."
    if changed := [run.name for run in results.runs if run.changed]:
        yield f"A retry changed {some(changed)}: not what the spec asks for, so left out of comparisons."
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
        yield f"{some(names, 2)} ({shorten(_together(whys), _WHY)})"


def _together(whys: Sequence[str]) -> str:
    """Reasons that differ in their numbers, as one: `worse by 0.065 to 0.190`; else the first, as an example."""
    first, *others = (_NUMBER.split(why) for why in dict.fromkeys(whys))
    if any(other[::2] != first[::2] for other in others):
        return f"such as: {whys[0]}"
    return "".join(_span(same) if index % 2 else same[0] for index, same in enumerate(zip(first, *others, strict=True)))


def _span(numbers: Sequence[str]) -> str:
    low, high = min(numbers, key=float), max(numbers, key=float)
    return low if float(low) == float(high) else f"{low} to {high}"


def _part(seconds: float, results: Results) -> str:
    return f"{_hours(seconds, results.hour_unit)} ({seconds / max(results.cost.total, 1e-9):.0%})"


def _hours(seconds: float, unit: str) -> str:
    """Device-seconds as hours, with their unit."""
    number = seconds / HOUR_S
    return f"{number:,.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"
