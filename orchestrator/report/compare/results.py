"""A campaign's results: its runs, their comparison and the recommendation. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from dscampaign.db.records import CampaignRow
from dscampaign.db.states import Stage
from dscampaign.orchestrator.report.measure.cost import Cost
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.spec.objective import Objective

from .answer import Answer, answer
from .baseline import BaselineComparison, compare_to_baseline
from .conditions import Condition, conditions_of, grouped
from .wording import intervals
from .workloads import TimeToLoss, Workload, asked_work, times_to_loss, workloads_of


@dataclass(frozen=True)
class WorkloadResults:
    """A workload with each condition beside its baseline, and the answer."""

    workload: Workload
    comparisons: tuple[BaselineComparison, ...]
    answer: Answer

    @property
    def basis(self) -> str:
        """The baseline and its reason, and what the intervals hold for."""
        known = any(one.times_baseline and one.times_baseline.low is not None for one in self.comparisons)
        held = f"; {intervals(self.comparisons[0].among)}" if known and len(self.comparisons) > 1 else ""
        return f"baseline: {self.workload.baseline.title} ({self.workload.because}){held}"


@dataclass(frozen=True)
class Results:
    """All data of a report; the runs are in the order of the matrix.

    `times` are of conditions that differ in their tokens per step, by their time to the same loss. Screening runs are
    separate: they count in the cost, and in no comparison or estimate.
    """

    campaign: CampaignRow
    runs: tuple[MeasuredRun, ...]
    workloads: tuple[WorkloadResults, ...]
    times: tuple[TimeToLoss, ...]
    cost: Cost
    objective: Objective | None = None
    screening: tuple[MeasuredRun, ...] = ()

    @property
    def comparisons(self) -> list[BaselineComparison]:
        """Of all workloads."""
        return [each for one in self.workloads for each in one.comparisons]

    @property
    def conditions(self) -> list[Condition]:
        """Of all workloads."""
        return [one.condition for one in self.comparisons]

    @property
    def hour_unit(self) -> str:
        """The unit of attempts' time."""
        return "GPU-hours" if any(run.on_gpus for run in self.runs) else "rank-hours"

    @property
    def only_cpus(self) -> bool:
        """Whether all runs with a known device trained on CPUs."""
        told = [run for run in self.runs if run.device_names]
        return bool(told) and all(run.on_cpus for run in told)


def results_of(
    campaign: CampaignRow, runs: Sequence[MeasuredRun], baseline: str | None = None, by: Objective | None = None
) -> Results:
    """Compare a campaign's runs with the named or default baseline; recommend by `by`, else by the spec's objective."""
    by = by or _objective_of(campaign)
    full = tuple(run for run in runs if run.stage is Stage.FULL)
    screening = tuple(run for run in runs if run.stage is Stage.SCREENING)
    workloads = workloads_of(conditions_of(full), baseline, campaign.provenance.get("baseline"))
    compared = tuple(_results(workload, by, campaign.provenance.get("loss_margin")) for workload in workloads)
    return Results(campaign, full, compared, tuple(_times(workloads)), _sum(full, screening), by, screening)


def _objective_of(campaign: CampaignRow) -> Objective | None:
    """Return the spec's objective; None if not set."""
    said = campaign.provenance.get("objective")
    return Objective(said) if said in tuple(Objective) else None


def _results(workload: Workload, by: Objective | None, margin: float | None) -> WorkloadResults:
    comparisons = tuple(compare_to_baseline(workload.conditions, workload.baseline, margin))
    return WorkloadResults(workload, comparisons, answer(comparisons, by))


def _times(workloads: Sequence[Workload]) -> list[TimeToLoss]:
    """Of each set of workloads that differ in their global batch, and of several of which a run counts.

    Their steps may differ too: a batch twice as large is often given half of them.
    """
    apart = {"global_batch": None, "steps": None}
    alike = grouped(filter(_has_curves, workloads), lambda one: asked_work(one.conditions[0]) | apart)
    several = [group for group in alike if len({one.conditions[0].tokens_per_step for one in group}) > 1]
    return [time for group in several for time in times_to_loss([each for one in group for each in one.conditions])]


def _has_curves(workload: Workload) -> bool:
    script = workload.conditions[0].runs[0].config.get("command")
    return not script and any(condition.counted for condition in workload.conditions)


def _sum(runs: Sequence[MeasuredRun], screening: Sequence[MeasuredRun]) -> Cost:
    lost: dict[str, float] = defaultdict(float)
    for run in runs:
        for kind, value in run.cost.lost.items():
            lost[kind] += value
    plain = ("training", "warm_up", "around", "queued_s", "untimed", "search")
    sums = {name: sum(getattr(run.cost, name) for run in runs) for name in plain}
    most_first = dict(sorted(lost.items(), key=lambda item: -item[1]))
    return Cost(**sums, lost=most_first, screening=sum(run.cost.total for run in screening))
