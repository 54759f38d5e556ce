"""The results in plain sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ...views.text import count
from ..compare.results import Results
from ..compare.statistics import Sameness
from ..compare.wording import devices, hours, listed, only_cpus, unit
from ..measure.flags import flags_of


def summary(results: Results) -> Iterator[str]:
    """The results in plain sentences."""
    runs = results.runs
    done = sum(run.completed for run in runs)
    conditions = len(results.conditions)
    yield (
        f"{done} of {count(len(runs), 'run')} completed, in {count(conditions, 'condition')}; "
        f"{hours(results.cost.total, unit(runs))} on {devices(runs)}."
    )
    if only_cpus(runs):
        yield "All on CPUs: their speeds and their memory say nothing about GPUs."
    for one in results.compared:
        yield (
            f"{one.workload.name}: {one.recommendation.sentence}" if one.workload.name else one.recommendation.sentence
        )
    chosen = [one.recommendation for one in results.compared if one.recommendation.chosen]
    excluded = {name: why for recommendation in chosen for name, why in recommendation.excluded.items()}
    if excluded:
        yield f"Not considered: {listed([f'{name} ({why})' for name, why in excluded.items()], 4)}."
    worse = [
        each.condition.name for one in results.compared for each in one.judged if each.loss.verdict == Sameness.WORSE
    ]
    if worse:
        yield f"Learned worse than the baseline: {listed(worse)}."
    changed = [run.name for run in runs if run.changed]
    if changed:
        yield f"A retry changed {listed(changed)}: not what the spec asks for, so left out of comparisons."
    flagged = sum(bool(flags_of(run)) for run in runs)
    if flagged:
        yield f"{count(flagged, 'run')} with remarks on the data: see Data quality."
    if lost := sum(results.cost.lost.values()):
        share = lost / max(results.cost.total, 1e-9)
        yield f"{hours(lost, unit(runs))} ({share:.0%}) were lost to attempts that failed or were cancelled."
