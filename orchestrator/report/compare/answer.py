"""The answer of a workload: a sentence, and its conditions, best first, each with a verdict. Pure.

Conditions that cannot be relied on are out. Among the others speed leads, unless an axis changes what is learned or an
objective is set. If the fastest learns worse than another and no objective is set, the reader decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from dscampaign.orchestrator.campaign.titles import mixed_code
from dscampaign.orchestrator.formatting import count, duration, loss_number
from dscampaign.orchestrator.report.measure.metrics import METRICS, Metric, OverRepeats
from dscampaign.orchestrator.spec.objective import WORDS, Objective

from .baseline import BaselineComparison, compare_losses, compare_speeds, times_as_fast
from .conditions import Condition, circumstances, few_repeats, is_unfinished, unlike
from .ranking import (
    best_learners,
    change_text,
    faster,
    faster_out,
    fastest_of,
    may_be_worse,
    median_loss,
    needs_least,
    pace,
    unfit,
)
from .reasons import Reason, Why, reasons_text
from .statistics import Estimate, LossTest, Standing, estimate
from .wording import loss_gap
from .workloads import common_loss, ignored, learning_axes, seconds_to_loss


@dataclass(frozen=True)
class Row:
    """A condition in the order of the answer.

    Attributes:
        beside_best: its speed as a multiple of the best condition's.
        loss_beside_best: the test of its loss against the best condition's; None if another objective leads.
        figure: of the leading objective, with its unit; empty if unknown.
        why: the reason that it is out.
    """

    comparison: BaselineComparison
    verdict: Standing
    beside_best: Estimate | None = None
    loss_beside_best: LossTest | None = None
    figure: str = ""
    why: Reason | None = None

    @property
    def condition(self) -> Condition:
        """The condition."""
        return self.comparison.condition

    @property
    def loss(self) -> LossTest:
        """The test of its loss in a table: against the best if loss leads, else against the baseline."""
        return self.loss_beside_best or self.comparison.loss


@dataclass(frozen=True)
class Answer:
    """The answer of a workload.

    Attributes:
        lead: the objective that decides.
        sentence: at most 20 words, counting the name of a condition once.
        rows: all conditions, best first.
        chosen: None if none can be, or if the reader has to decide between `fastest` and `learner`.
        doubts: reasons that the order is not proven, with what would decide it; different code first.
        remarks: other remarks on the data.
    """

    lead: Objective
    sentence: str
    rows: tuple[Row, ...] = field(repr=False)
    chosen: Condition | None = None
    fastest: Condition | None = None
    learner: Condition | None = None
    doubts: tuple[Reason, ...] = ()
    remarks: tuple[Reason, ...] = ()

    @property
    def proven(self) -> bool:
        """Whether the repeats prove the choice."""
        return self.learner is not None and not self.doubts

    @property
    def undecided(self) -> bool:
        """Whether the fastest and the best learner differ, and no objective is set."""
        return self.chosen is None and self.learner is not None

    @property
    def tied(self) -> tuple[str, ...]:
        """The names of conditions as good as the chosen."""
        return tuple(row.condition.name for row in self.rows if row.verdict is Standing.EQUAL)

    @property
    def excluded(self) -> dict[str, Reason]:
        """The reasons against conditions, by name."""
        return {row.condition.name: row.why for row in self.rows if row.why}


def answer(comparisons: Sequence[BaselineComparison], by: Objective | None = None) -> Answer:
    """Return the answer for conditions that were measured beside the same baseline.

    Equal speeds are ordered by the loss, then by memory, the lower ZeRO stage and energy. Losses count by `loss_test`;
    of conditions that learn as well as the best, the fastest is chosen.
    """
    loss_leads = by is None and bool(learning_axes([one.condition for one in comparisons if one.losses]))
    lead = Objective.LOSS if loss_leads else by or Objective.SPEED
    out = {one.condition.name: reason for one in comparisons if (reason := unfit(one, lead))}
    fit = [one for one in comparisons if one.condition.name not in out]
    figure = _figure(lead, fit, comparisons)
    scored = fit if lead in (Objective.SPEED, Objective.LOSS) else _scored(figure, fit)
    scores = {one.condition.name: one for one in scored if one.speed or lead is Objective.LOSS}
    left = [one for one in fit if one.condition.name in scores]
    out |= {one.condition.name: Reason(Why.NOT_MEASURED, detail=figure.label) for one in fit if one not in left}
    remarks = tuple(_remarks(comparisons))
    if not left:
        none = tuple(Row(one, Standing.OUT, why=out[one.condition.name]) for one in comparisons)
        return Answer(lead, _nothing(none), none, remarks=remarks)
    return _Ranking(lead, by is None, figure, comparisons, left, scores, out).answer(remarks)


def _figure(lead: Objective, fit: Sequence[BaselineComparison], comparisons: Sequence[BaselineComparison]) -> Metric:
    """Return the measure of an objective; the loss of `time-to-loss` is a level that all fit conditions reach."""
    if lead is Objective.TIME_TO_LOSS:
        target = common_loss([one.condition for one in fit]) or math.nan
        of, label = partial(seconds_to_loss, target=target), f"time to a loss of {loss_number(target, 3)}"
        return Metric(lead, of, OverRepeats.MEDIAN, duration, label=label)
    in_held_out = lead is not Objective.LOSS or comparisons[0].in_held_out
    return METRICS[WORDS[lead][0] if in_held_out else "final_loss"]


def _scored(figure: Metric, compared: Sequence[BaselineComparison]) -> list[BaselineComparison]:
    """Return conditions with a score of each repeat in place of its speed, the higher the lower the figure.

    Conditions of which a repeat was not measured are left out.
    """
    scored = []
    for one in compared:
        values = {run.repeat: figure.of(run) or math.nan for run in one.condition.counted}
        scores = {repeat: 1.0 / value for repeat, value in values.items() if 0.0 < value < math.inf}
        if scores and len(scores) == len(values):
            blocks = {block: scores[block[0]] for block in one.blocks}
            scored.append(replace(one, speeds=tuple(scores.values()), blocks=blocks, spent=0.0))
    return scored


@dataclass(frozen=True)
class _Ranking:
    """The conditions that may be chosen.

    Attributes:
        is_open: no objective is set.
        scores: by name; of other objectives than speed and loss, a score of each repeat is in place of its speed.
        out: the reasons against the other conditions.
    """

    lead: Objective
    is_open: bool
    figure: Metric
    comparisons: Sequence[BaselineComparison]
    left: Sequence[BaselineComparison]
    scores: Mapping[str, BaselineComparison]
    out: Mapping[str, Reason]

    @cached_property
    def chosen(self) -> BaselineComparison:
        if self.lead is Objective.SPEED:
            return fastest_of(self.left)
        if self.lead is Objective.LOSS:
            alike = [one for one in self.left if self._learns_like_the_lowest(one)]
            return fastest_of(alike, self.lead) if all(one.speed for one in alike) else self._lowest
        scores = list(self.scores.values())
        able = {one.condition.name for one in scores if not any(faster(other, one) for other in scores)}
        return max((one for one in self.left if one.condition.name in able), key=pace)

    @cached_property
    def _lowest(self) -> BaselineComparison:
        return min(self.left, key=median_loss)

    def _learns_like_the_lowest(self, one: BaselineComparison) -> bool:
        """Return whether it is shown to learn as well, or differs by rounding only: two trainings differ by more."""
        same = one is self._lowest or compare_losses(one, self._lowest).verdict is Standing.EQUAL
        return same or math.isclose(median_loss(one), median_loss(self._lowest), rel_tol=1e-5)

    @cached_property
    def fastest(self) -> BaselineComparison:
        return fastest_of([one for one in self.left if one.speed] or self.left, self.lead)

    @cached_property
    def learner(self) -> BaselineComparison:
        if self.lead is Objective.SPEED:
            return fastest_of(best_learners(self.left, self.fastest))
        return self._lowest if self.lead is Objective.LOSS else self.chosen

    @cached_property
    def undecided(self) -> bool:
        return self.is_open and self.lead is Objective.SPEED and self.learner is not self.fastest

    @cached_property
    def ahead(self) -> Reason | None:
        """A faster condition that is out."""
        speed_leads = self.lead is Objective.SPEED and not self.undecided
        return faster_out(self.chosen, self.comparisons, self.out) if speed_leads else None

    def answer(self, remarks: tuple[Reason, ...]) -> Answer:
        doubts = tuple(self._doubts())
        rows = self._rows(doubtful=bool(doubts))
        if self.undecided:
            fastest, learner = self.fastest.condition.title, self.learner.condition.title
            claim = f"Fastest: {fastest}; lowest loss: {learner}. Choose by speed or loss"
        else:
            claim = self._claim(rows, doubts)
        shown = [one for one in doubts if not (self.undecided and one.code is Why.VARIES)]
        shown = shown or ([self.ahead] if self.ahead else [])
        if shown and shown[0].code is Why.DIFFERENT_CODE:
            sentence = f"Code differs: {claim}."
        else:
            sentence = f"{claim}; {reasons_text(shown[:1], short=True)}." if shown else f"{claim}."
        others = sorted((one for one in self.comparisons if one.condition.name in self.out), key=pace, reverse=True)
        return Answer(
            lead=self.lead,
            sentence=sentence,
            rows=(*rows, *(self._row(one, Standing.OUT, self.out[one.condition.name]) for one in others)),
            chosen=None if self.undecided else self.chosen.condition,
            fastest=self.fastest.condition if self.fastest.speed else None,
            learner=self.learner.condition,
            doubts=doubts,
            remarks=remarks,
        )

    def _rows(self, *, doubtful: bool) -> list[Row]:
        def score(one: BaselineComparison) -> float:
            return median_loss(one) if self.lead is Objective.LOSS else -pace(self.scores[one.condition.name])

        others = sorted((one for one in self.left if one is not self.chosen), key=score)
        rows = [self._row(one, self._verdict(one)) for one in (self.chosen, *others)]
        if self.undecided:
            apart = {self.fastest.condition.name: Standing.FASTEST, self.learner.condition.name: Standing.LOWEST_LOSS}
            rows = [replace(row, verdict=apart.get(row.condition.name, row.verdict)) for row in rows]
            rows.sort(key=lambda row: row.condition.name not in apart)
        elif doubtful:
            rows[0] = replace(rows[0], verdict=Standing.FIRST)
        return rows

    def _row(self, one: BaselineComparison, verdict: Standing, why: Reason | None = None) -> Row:
        loss = compare_losses(one, self.chosen) if self.lead is Objective.LOSS else None
        figure = "" if why else self._figure_text(one)
        return Row(one, verdict, times_as_fast(one, self.chosen), loss, figure, why)

    def _figure_text(self, one: BaselineComparison) -> str:
        if self.figure.name in METRICS:
            return one.condition.text(self.figure.name)
        median = estimate([value for run in one.condition.counted if (value := self.figure.of(run)) is not None])
        return self.figure.text(median.value) if median else ""

    def _verdict(self, one: BaselineComparison) -> Standing:
        if one is self.chosen:
            return Standing.BEST
        order = Standing.NOT_PROVEN if unlike(one.condition, self.chosen.condition) else self._order(one)
        if self.lead is Objective.LOSS:
            loss = compare_losses(one, self.chosen).verdict
            return order if loss is Standing.EQUAL and order is Standing.SLOWER else loss
        return Standing.WORSE if order is Standing.SLOWER and self.lead is not Objective.SPEED else order

    def _order(self, one: BaselineComparison) -> Standing:
        return compare_speeds(self.scores[one.condition.name], self.scores[self.chosen.condition.name])

    def _doubts(self) -> Iterator[Reason]:
        conditions = [one.condition for one in self.comparisons]
        if code := mixed_code((run.name, run.code) for one in conditions for run in one.counted):
            yield Reason(Why.DIFFERENT_CODE, detail=code)
        if waiting := [one.title for one in conditions if is_unfinished(one)]:
            yield Reason(Why.PROVISIONAL, tuple(waiting))
        yield from self._loss_doubts() if self.lead is Objective.LOSS else self._speed_doubts()
        yield from circumstances(self.chosen.condition, [one.condition for one in self.left])

    def _speed_doubts(self) -> Iterator[Reason]:
        if few := few_repeats([one.condition for one in self.left], losses=False):
            yield few
            return
        unsure = [one.condition for one in self.left if one.loss.difference is None or one.loss.difference.low is None]
        if unsure:
            yield few_repeats(unsure, losses=True) or Reason(Why.NO_LOSSES, tuple(one.title for one in unsure))
            return
        if self.ahead and self.ahead.code is Why.FASTER_UNPROVEN:
            yield self.ahead
        if may_be_worse(self.chosen):
            loss = self.chosen.loss
            most = loss.difference.high if loss.difference else None
            yield Reason(Why.LOSS_VARIES, number=most, unit=self.chosen.loss_unit, detail=loss_gap(loss.margin, "", ""))
        others = [one for one in self.left if one is not self.chosen]
        if unclear := [one.condition.title for one in others if self._order(one) is Standing.NOT_PROVEN]:
            good = "fast" if self.lead is Objective.SPEED else "good"
            yield Reason(Why.VARIES, tuple(unclear), detail=good)

    def _loss_doubts(self) -> Iterator[Reason]:
        tests = [(one.condition, compare_losses(one, self.chosen)) for one in self.left if one is not self.chosen]
        unclear = [one for one, test in tests if test.verdict not in (Standing.WORSE, Standing.EQUAL)]
        if unclear:
            few = few_repeats([self.chosen.condition, *unclear], losses=True)
            yield few or Reason(Why.VARIES, tuple(one.title for one in unclear), detail="good")

    def _claim(self, rows: Sequence[Row], doubts: Sequence[Reason]) -> str:
        run, title = self.chosen.condition.counted[0], self.chosen.condition.title
        title += f" ({run.changes or f'micro-batch {run.micro_batch}'})" if change_text(run) else ""  # of all alike
        doubt = doubts[0].code if doubts else None
        if {reason.code for reason in self.out.values()} == {Why.UNFINISHED} and len(rows) == 1:
            return f"No order yet: {title} is the first to finish"
        start = title if doubt is Why.DIFFERENT_CODE else f"{title} ranks first" if doubts else f"Use {title}"
        if self.ahead and doubt in (None, self.ahead.code) and len(rows) > 1:
            verb = f"{title} looks" if doubts else f"{start}:"
            return f"{verb} fastest of {len(rows)} comparable (of {len(self.comparisons)})"
        if doubt is Why.VARIES and (self.lead is not Objective.LOSS or self.chosen is self.learner):
            return f"{title} looks {'fastest' if self.lead is Objective.SPEED else f'best by {self.lead}'}"
        return f"{start}: {self._advantage(rows)}"

    def _advantage(self, rows: Sequence[Row]) -> str:
        chosen, tied = self.chosen, [row.comparison for row in rows if row.verdict is Standing.EQUAL]
        if len(rows) == 1:
            return "no alternative qualifies"
        if self.lead is Objective.LOSS:
            same = sum(row.verdict in (Standing.EQUAL, Standing.SLOWER) for row in rows)
            alike = f"fastest of {same + 1} with equally low loss" if same else "fastest with about the lowest loss"
            return f"lowest {chosen.loss_is} loss" if chosen is self.learner else alike
        if self.lead is not Objective.SPEED:
            return f"least {self.figure.label}, {rows[0].figure}"
        if tied:
            least = ", least memory" if needs_least(chosen, tied) else ""
            return f"as fast as {count(len(tied), 'other')}{least}"
        if chosen.is_baseline or not chosen.times_baseline:
            return f"the fastest of {len(rows)}"
        same_loss = ", same loss" if chosen.loss.verdict is Standing.EQUAL else ""
        return f"{chosen.times_baseline.value:.2f} × the baseline's speed{same_loss}"


def _remarks(comparisons: Sequence[BaselineComparison]) -> Iterator[Reason]:
    if change := next((text for one in comparisons for run in one.condition.counted if (text := change_text(run))), ""):
        yield Reason(Why.ALIKE, detail=change)
    for axis in ignored(run for one in comparisons for run in one.condition.runs):
        yield Reason(Why.IGNORED, (axis,))


def _nothing(rows: Sequence[Row]) -> str:
    reasons = [row.why for row in rows if row.why]
    codes = {reason.code for reason in reasons}
    if not codes:
        return "No run has results yet."
    left = [row for row in rows if row.why and row.why.code is Why.NOT_MEASURED]
    if len(left) == 1 and codes == {Why.NOT_MEASURED, Why.ENDED} and left[0].why:
        return f"{left[0].condition.title} is the only one that completed; its {left[0].why.label}."
    sizes = [reason.number for reason in reasons if reason.number is not None]
    if codes == {Why.CHANGED} and sizes:
        return f"Nothing can be recommended: retries changed sizes; set `micro_batch: {min(sizes):.0f}` for all."
    if len(codes) > 1:
        return "Nothing can be recommended; each condition has a reason against it."
    without = {Why.UNFINISHED: "no condition is finished", Why.ENDED: "no condition completed"}
    against = without.get(*codes) or reasons_text(reasons, short=Why.NOT_MEASURED in codes)
    return f"Nothing can be recommended: {against}."
