"""The configuration to use: feasible, as good as the baseline, then the fastest and the best learner. Pure.

If these are two conditions, neither is better: the reader decides by the objective.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dscampaign.orchestrator.campaign.code_text import mixed_code
from dscampaign.orchestrator.formatting import loss_number, some
from dscampaign.orchestrator.spec.objective import Objective

from .advice import advice
from .baseline import BaselineComparison, compare_losses, compare_speeds, speed_text, times_as_fast
from .conditions import Condition, circumstances, few_repeats
from .feasible import infeasible, is_screened_out, is_unfinished, unfit
from .ignored_axes import learning_axes
from .objectives import TIED, Answer, Yardstick, answer, figure_text, scored, yardstick
from .ranking import (
    best_learners,
    faster,
    fastest_of,
    is_unclear,
    learns_as_well,
    learns_worse,
    may_be_worse,
    median_loss,
    needs_least,
    pace,
    pareto_front,
    ties,
    weighed,
)
from .sensitivity import effect_sentences
from .statistics import LEAST_REPEATS, Order, Sameness, estimate
from .wording import difference, loss_gap, rounds_to_nothing, times

_ROUNDING: Final = 1e-5
"""Of a loss: two ways to compute the same training differ by less, two trainings by more."""

_OF_THEIR_OWN: Final = (None, Objective.SPEED, Objective.LOSS)
"""Objectives by which conditions are chosen in a way of their own; all others have a figure and no more."""


@dataclass(frozen=True)
class Recommendation:
    """The recommended condition, and the reasons against the others.

    Attributes:
        chosen: None if no condition may be recommended, or if the fastest learns worse than another and no objective
            is set.
        fastest: of conditions that learn no worse than the baseline.
        learner: the best learner: the fastest unless another is established as better.
        established: the repeats suffice for the statements on the chosen condition, or on both.
        excluded: the reason against each condition, by name.
        front: names of conditions that no other beats in speed, memory and energy at once, fastest first.
        weighed: the measured ones of these three figures.
        answer: the chosen condition with its figure, beside the next best; None if none is chosen.
        sentence: the recommendation as text.
        advice: sentences on the next run.
        effects: sentences on the effect of each axis.
    """

    excluded: dict[str, str]
    sentence: str
    advice: tuple[str, ...]
    effects: tuple[str, ...]
    learner: Condition | None
    chosen: Condition | None = None
    fastest: Condition | None = None
    established: bool = False
    tied: tuple[str, ...] = ()
    front: tuple[str, ...] = ()
    weighed: tuple[str, ...] = ()
    answer: Answer | None = None

    @property
    def undecided(self) -> bool:
        """Whether the fastest and the best learner differ, and no objective is set."""
        return self.chosen is None and self.learner is not None

    @property
    def trade_off(self) -> str:
        """The conditions that no other beats, if they are several and speed alone does not order them; else ""."""
        if len(self.front) < 2 or len(self.weighed) < 2:
            return ""
        *first, last = self.weighed
        return f"Pareto-optimal in {', '.join(first)} and {last}: {', '.join(self.front)}."


@dataclass(frozen=True)
class _Choice:
    """A choice among conditions, as text, and the doubts about it."""

    chosen: BaselineComparison | None
    fastest: BaselineComparison | None
    learner: BaselineComparison
    among: Sequence[BaselineComparison]
    words: str
    doubts: tuple[str, ...]
    answer: Answer | None = None

    @property
    def tied(self) -> list[BaselineComparison]:
        """Conditions as fast as the chosen."""
        chosen = self.chosen
        return [one for one in self.among if chosen and one is not chosen and ties(one, chosen)]


def recommend(comparisons: Sequence[BaselineComparison], by: Objective | None = None) -> Recommendation:
    """Choose among conditions that were measured beside the same baseline.

    Ties in speed are decided by the better loss, then by memory, the lower ZeRO stage, joules per token. A condition is
    not chosen if another is faster, or beats it in speed, memory and energy at once. Losses count by `loss_test`; of
    conditions that learn as well as the best, the fastest is chosen. By loss, no speed is needed.
    """
    loss_leads = by is None and bool(learning_axes([one.condition for one in comparisons if one.losses]))
    by = Objective.LOSS if loss_leads else by
    excluded = {one.condition.name: why.text for one in comparisons if (why := unfit(one))}
    fit = [one for one in comparisons if one.condition.name not in excluded]
    stick = None if by in _OF_THEIR_OWN else yardstick(by, fit)
    if stick:
        measured = {one.condition.name for one in scored(stick, fit)}
        excluded |= {one.condition.name: stick.missing for one in fit if one.condition.name not in measured}
    elif by is not Objective.LOSS:
        excluded |= {one.condition.name: "no step was timed" for one in fit if not one.speed}
    left = [one for one in fit if one.condition.name not in excluded]
    if not left:
        return _nothing(comparisons, fit, excluded, by, stick)
    if stick:
        made = _by_figure(left, stick, excluded)
    else:
        made = _by_loss(left, excluded, if_close=loss_leads) if by is Objective.LOSS else _by_speed(left, by, excluded)
    doubts = [*_unfinished(comparisons), *made.doubts, *_by_chance(made, comparisons)]
    code = mixed_code((run.name, run.code) for one in comparisons for run in one.condition.counted)
    slower = _faster_but_worse(comparisons, made.chosen or made.fastest)
    return Recommendation(
        chosen=made.chosen.condition if made.chosen else None,
        fastest=made.fastest.condition if made.fastest else None,
        learner=made.learner.condition,
        established=not doubts and not code,
        tied=tuple(one.condition.name for one in made.tied),
        excluded=excluded,
        front=pareto_front(left),
        weighed=weighed(left),
        answer=made.answer,
        sentence=" ".join(filter(None, [code, *_learning(made.learner, left), made.words, *slower, *doubts])),
        advice=tuple(advice(comparisons, made.chosen.condition if made.chosen else None)),
        effects=tuple(effect_sentences(comparisons)),
    )


def _by_speed(left: Sequence[BaselineComparison], by: Objective | None, excluded: Mapping[str, str]) -> _Choice:
    """Choose the fastest; nothing if another learns better and no objective is set."""
    fastest = fastest_of(left)
    learner = fastest_of(best_learners(left, fastest))
    doubts = tuple(_doubts(fastest, left))
    if learner is not fastest and by is None:
        words = f"{_pace_beside(fastest, learner)} Which to use depends on what counts, loss or speed."
        return _Choice(None, fastest, learner, left, words, doubts)
    made = _Choice(fastest, fastest, learner, left, "", doubts, answer(yardstick(Objective.SPEED, left), fastest, left))
    return replace(made, words=_sentence(fastest, made.tied, left, excluded))


def _by_figure(left: Sequence[BaselineComparison], stick: Yardstick, excluded: Mapping[str, str]) -> _Choice:
    """Choose the best by the objective's figure; of several equal conditions the fastest."""
    originals = {one.condition.name: one for one in left}
    by_score = sorted(scored(stick, left), key=pace, reverse=True)
    able = [one for one in by_score if not any(faster(other, one) for other in by_score)]
    chosen = max(able, key=lambda one: pace(originals[one.condition.name]))
    timed = [one for one in left if one.speed]
    fastest = fastest_of(timed) if timed else None
    made = _Choice(
        originals[chosen.condition.name],
        fastest,
        fastest_of(best_learners(left, fastest)) if fastest else min(left, key=median_loss),
        left,
        _figure_sentence(stick, chosen, by_score, excluded),
        tuple(_doubts(chosen, by_score)),
        answer(stick, chosen, by_score),
    )
    if fastest and fastest is not made.chosen:
        made = replace(made, words=f"{made.words} {_pace_beside(fastest, originals[chosen.condition.name])}")
    return made


def _by_loss(left: Sequence[BaselineComparison], excluded: Mapping[str, str], *, if_close: bool) -> _Choice:
    """Choose the lowest loss; of conditions that learn as well, or within the margin `if_close`, the fastest."""
    lowest = min(left, key=median_loss)
    able = [one for one in left if one is lowest or learns_as_well(one, lowest) or _is_rounding(one, lowest)]
    if if_close:
        able = [one for one in left if one in able or _is_close(one, lowest)]
    chosen, timed = fastest_of(able), [one for one in left if one.speed]
    fastest = fastest_of(timed) if timed else None
    unclear = [one for one in left if one is not chosen and is_unclear(one, chosen)]
    why = "no other learns as well" if len(able) == 1 else f"the fastest of {len(able)} that learn best"
    why = f"its {chosen.loss_is} loss is the lowest of {len(left)}" if unclear else why
    why = why if len(left) > 1 else _alone(chosen, excluded)
    words = f"{_verb(chosen, losses=True)} {chosen.condition.name}{_gain(chosen)}: {why}."
    if fastest and fastest is not chosen:
        words += f" {_pace_beside(fastest, chosen)}"
    return _Choice(
        chosen, fastest, chosen, able, words, tuple(_loss_doubts(chosen, unclear)), _loss_answer(chosen, left)
    )


def _is_close(one: BaselineComparison, lowest: BaselineComparison) -> bool:
    test = compare_losses(one, lowest)
    return test.difference is not None and test.difference.value <= test.margin


def _is_rounding(one: BaselineComparison, lowest: BaselineComparison) -> bool:
    return math.isclose(median_loss(one), median_loss(lowest), rel_tol=_ROUNDING)


def _loss_answer(chosen: BaselineComparison, left: Sequence[BaselineComparison]) -> Answer:
    name, own = chosen.condition.name, estimate([loss for _, loss in chosen.losses])
    said = f"{loss_number(own.value)}{chosen.loss_unit}" if own else ""
    others = [one for one in left if one is not chosen]
    if not others:
        return Answer(name, said)
    following = min(others, key=median_loss)
    test = compare_losses(following, chosen)
    apart = test.difference.value if test.difference else None
    gain = "" if apart is None else f"{difference(apart, chosen.loss_unit, '')}{chosen.loss_unit}"
    words = {Sameness.WORSE: "established", Sameness.EQUIVALENT: TIED, Sameness.BETTER: "worse"}
    shown = words.get(test.verdict, "not established")
    level = shown == TIED or (apart is not None and rounds_to_nothing(apart, chosen.loss_unit))
    return Answer(name, said, following.condition.name, gain, shown, level)


def _unfinished(comparisons: Sequence[BaselineComparison]) -> Iterator[str]:
    if waiting := [one.condition.name for one in comparisons if is_unfinished(one.condition)]:
        verb = "is" if len(waiting) == 1 else "are"
        yield f"Provisional: {some(waiting, 3)} {verb} not finished."


def _doubts(chosen: BaselineComparison, left: Sequence[BaselineComparison]) -> Iterator[str]:
    """Yield why it is not established that the chosen condition learns as well as the baseline, and none is faster."""
    if few := few_repeats([one.condition for one in left], losses=False):
        yield f"Inconclusive: {few.text}."
        return
    if unsure := [one for one in left if not _sure(one)]:
        few = few_repeats([one.condition for one in unsure], losses=True)
        yield f"Inconclusive: {few.text if few else next(one.loss.reason for one in unsure if one.loss.reason)}."
        return
    others = (one for one in left if one is not chosen)
    unclear = [one for one in others if compare_speeds(one, chosen) == Order.INCONCLUSIVE]
    why = ["losses vary too much to show that it learns as well as the baseline"] if may_be_worse(chosen) else []
    if unclear:
        names = some([one.condition.name for one in unclear], 3)
        why.append(f"repeats vary too much to separate it from {names}")
    if why:
        yield f"Inconclusive: {', and '.join(why)}. Add repeats."


def _loss_doubts(chosen: BaselineComparison, unclear: Sequence[BaselineComparison]) -> Iterator[str]:
    """Why it is not established that none of these learns better."""
    few = few_repeats([one.condition for one in (chosen, *unclear)], losses=True)
    if unclear and few:
        yield f"Inconclusive: {few.text}."
    elif unclear:
        names = some([one.condition.name for one in unclear], 3)
        yield f"Inconclusive: losses vary too much to separate it from {names}. Add repeats."


def _by_chance(made: _Choice, comparisons: Sequence[BaselineComparison]) -> Iterator[str]:
    """Yield the reason if a speed beside the chosen condition's may be due to another device or environment."""
    told, among = made.chosen or made.fastest, {one.condition.name for one in made.among}
    compared = [one.condition for one in comparisons if one.is_baseline or one.condition.name in among]
    if told:
        yield from (f"Inconclusive: {why.text}." for why in circumstances(told.condition, compared))


def _sure(one: BaselineComparison) -> bool:
    return one.loss.difference is not None and one.loss.difference.repeats >= LEAST_REPEATS


def _learning(learner: BaselineComparison, left: Sequence[BaselineComparison]) -> Iterator[str]:
    """Yield a sentence if it learns better than others."""
    worse = [one for one in left if learns_worse(one, learner)]
    if worse:
        gaps = [found.value for one in worse if (found := compare_losses(one, learner).difference)]
        low, high = (loss_gap(gap, learner.loss_unit, "") for gap in (min(gaps), max(gaps)))
        gap = (low if low == high else f"{low} to {high}") + learner.loss_unit
        names = some([one.condition.name for one in worse], 3)
        yield f"{learner.condition.name} learns best: its {learner.loss_is} loss is {gap} below that of {names}."


def _pace_beside(fastest: BaselineComparison, learner: BaselineComparison) -> str:
    found = times_as_fast(fastest, learner)
    if found is None or ties(fastest, learner):
        return f"{fastest.condition.name} is the fastest{', though hardly' if found else ''}."
    return f"{fastest.condition.name} is the fastest, at {times(found)} × its speed."


def _sentence(
    chosen: BaselineComparison,
    tied: Sequence[BaselineComparison],
    left: Sequence[BaselineComparison],
    excluded: Mapping[str, str],
) -> str:
    name = chosen.condition.name
    good = "feasible and learn no worse than the baseline"
    if len(left) == 1:
        why = _alone(chosen, excluded)
    elif tied:
        least = ", and needs least" if needs_least(chosen, tied) else ""
        why = f"as fast as {some([one.condition.name for one in tied], 3)}{least}"
    else:
        why = f"the fastest of {len(left)} configurations that are {good}"
    return f"{_verb(chosen)} {name}{_gain(chosen)}: {why}."


def _verb(chosen: BaselineComparison, *, losses: bool = False) -> str:
    """Return how a choice is announced: without repeats it is only a ranking."""
    return "Ranked first:" if few_repeats([chosen.condition], losses=losses) else "Use"


def _alone(chosen: BaselineComparison, excluded: Mapping[str, str]) -> str:
    """Return the reason to choose it if no other may be chosen."""
    if not excluded:
        return "the only configuration"
    if chosen.is_baseline:
        return "the baseline; nothing else can be recommended beside it"
    return "the only configuration so far that is feasible and learns no worse than the baseline"


def _figure_sentence(
    stick: Yardstick,
    chosen: BaselineComparison,
    compared: Sequence[BaselineComparison],
    excluded: Mapping[str, str],
) -> str:
    name, said = chosen.condition.name, figure_text(stick, chosen)
    if len(compared) == 1:
        good = " that can be recommended" if excluded else ""
        return f"{_verb(chosen)} {name} ({said}): the only configuration{good}."
    tied = [one.condition.name for one in compared if one is not chosen and ties(one, chosen)]
    if tied:
        return f"{_verb(chosen)} {name} ({said}): as good as {some(tied, 3)} by this measure, and the fastest of them."
    which = f"among {len(compared)} configurations that are feasible and learn no worse than the baseline"
    return f"{_verb(chosen)} {name} ({said}): it {stick.best} {which}."


def _gain(one: BaselineComparison) -> str:
    """Its speed as a multiple of the baseline's, of the baseline as it is; with the interval."""
    if one.is_baseline:
        return f" ({speed_text(one)})" if one.speed else ""
    return f" ({times(one.times_baseline)} × baseline)" if one.times_baseline else ""


def _faster_but_worse(comparisons: Sequence[BaselineComparison], told: BaselineComparison | None) -> Iterator[str]:
    """Yield the conditions that are faster than this, but learn worse than the baseline."""
    worse = [one for one in comparisons if one.loss.verdict == Sameness.WORSE and not infeasible(one.condition)]
    found = [
        f"{one.condition.name} ({times(gain)} × its speed)"
        for one in worse
        if told and one.speed and faster(one, told) and (gain := times_as_fast(one, told))
    ]
    if found:
        yield f"Faster, but learns worse than the baseline: {some(found, 3)}."


def _nothing(
    comparisons: Sequence[BaselineComparison],
    fit: Sequence[BaselineComparison],
    excluded: dict[str, str],
    by: Objective | None,
    stick: Yardstick | None,
) -> Recommendation:
    """Return a recommendation without a choice; the best learner may be known all the same."""
    lowest = min(fit, key=median_loss, default=None)
    said = [*(_learning(lowest, fit) if lowest else ())]
    if not comparisons:
        said.append("There is nothing to recommend yet: no run has figures.")
    elif stick and len(fit) > 1:
        said.append(f"Nothing can be recommended by {by}: {stick.missing} ({some([*excluded], 3)}).")
    elif len(fit) > 1:
        said.append(f"Nothing can be recommended by speed: no step of {some(list(excluded), 3)} was timed.")
    else:
        out = {one.condition.name for one in comparisons if is_screened_out(one.condition)}
        name, why = next((pair for pair in excluded.items() if pair[0] not in out), next(iter(excluded.items())))
        more = f" (and {len(excluded) - 1:,} more)" if len(excluded) > 1 else ""
        said.append(f"Nothing can be recommended: {name}: {why}{more}.")
    return Recommendation(
        learner=lowest.condition if lowest and len(said) > 1 else None,
        excluded=excluded,
        sentence=" ".join(said),
        advice=tuple(advice(comparisons, None)),
        effects=tuple(effect_sentences(comparisons)),
    )
