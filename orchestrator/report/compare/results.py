"""A campaign's results: its runs, their comparison and the recommendation. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dscampaign.db.records import CampaignRow
from dscampaign.db.states import Stage
from dscampaign.orchestrator.formatting import count, rough
from dscampaign.orchestrator.report.measure.cost import Cost
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.spec.objective import Objective

from .answer import Answer, answer
from .baseline import BaselineComparison, compare_to_baseline, pairing_text
from .conditions import Condition, condition_named, conditions_of
from .wording import intervals
from .workloads import Workload, workloads_of

if TYPE_CHECKING:
    from dscampaign.orchestrator.reconcile.search import SearchState
    from dscampaign.orchestrator.report.measure.load import FollowUp

HOUR_S: Final = 3600.0

UNCONFIRMED: Final = "Nothing to recommend: no run confirms a trial of the search."
"""Of results without a workload: a comparison counts no trial."""


@dataclass(frozen=True)
class WorkloadResults:
    """A workload with each condition beside its baseline, and the answer."""

    workload: Workload
    comparisons: tuple[BaselineComparison, ...]
    answer: Answer

    @property
    def basis(self) -> str:
        """The baseline and its reason, what the intervals hold for, and what pairs brought."""
        tests = [row.loss_beside_best for row in self.answer.rows if row.loss_beside_best]
        found = [one.times_baseline for one in self.comparisons] + [test.difference for test in tests]
        has_intervals = any(each and each.low is not None for each in found)
        held = f"; {intervals(self.comparisons[0].among)}" if has_intervals and len(self.comparisons) > 1 else ""
        pairs = f"; {text}" if (text := pairing_text(self.comparisons)) else ""
        return f"baseline: {self.workload.baseline.title} ({self.workload.because}){held}{pairs}"


@dataclass(frozen=True)
class Results:
    """All data of a report; the runs are in the order of the matrix.

    Trials and follow-ups count only in the cost.
    """

    campaign: CampaignRow
    runs: tuple[MeasuredRun, ...]
    workloads: tuple[WorkloadResults, ...]
    cost: Cost
    objective: Objective | None = None
    search: SearchState | None = None
    follow_ups: tuple[FollowUp, ...] = ()

    @property
    def comparisons(self) -> list[BaselineComparison]:
        """Of all workloads."""
        return [each for one in self.workloads for each in one.comparisons]

    @property
    def conditions(self) -> list[Condition]:
        """Of all workloads."""
        return [one.condition for one in self.comparisons]

    @property
    def effort(self) -> str:
        """What the answer rests on: `3 repeats each, 1.3 GPU-hours`."""
        counted = [len(one.counted) for one in self.conditions if one.counted]
        if not counted:
            return ""
        least, most = min(counted), max(counted)
        repeats = f"{count(most, 'repeat')} each" if least == most else f"{least} to {count(most, 'repeat')}"
        return f"{repeats}, {rough(self.cost.total / HOUR_S)} {self.hour_unit}"

    @property
    def hour_unit(self) -> str:
        """The unit of attempts' time."""
        return "GPU-hours" if any(run.on_gpus for run in self.runs) else "rank-hours"


def results_of(
    campaign: CampaignRow,
    runs: Sequence[MeasuredRun],
    baseline: str | None = None,
    by: Objective | None = None,
    search: SearchState | None = None,
    follow_ups: Sequence[FollowUp] = (),
) -> Results:
    """Compare a campaign's runs with the named or default baseline; recommend by `by`, else by the spec's objective.

    Raises UserError if the baseline does not exist.
    """
    of_spec = campaign.provenance.get("objective")
    by = by or (Objective(of_spec) if of_spec in tuple(Objective) else None)
    full = tuple(run for run in runs if run.stage is Stage.FULL)
    before = tuple(run for run in runs if run.stage is not Stage.FULL)
    conditions = conditions_of(full, whole=search is not None)
    named = condition_named(baseline, conditions, campaign.name).name if baseline is not None else None
    workloads = workloads_of(conditions, named, campaign.provenance.get("baseline"))
    compared = []
    for one in workloads:
        beside = tuple(compare_to_baseline(one.conditions, one.baseline, campaign.provenance.get("loss_margin")))
        compared.append(WorkloadResults(one, beside, answer(beside, by)))
    return Results(campaign, full, tuple(compared), _sum(full, before), by, search, tuple(follow_ups))


def _sum(runs: Sequence[MeasuredRun], before: Sequence[MeasuredRun]) -> Cost:
    lost: Counter[str] = Counter()
    for run in runs:
        lost.update(run.cost.lost)
    plain = ("training", "warm_up", "around", "queued_s", "untimed", "search")
    sums = {name: sum(getattr(run.cost, name) for run in runs) for name in plain}
    return Cost(dict(lost.most_common()), **sums, screening=sum(run.cost.total for run in before))
