"""Two conditions beside each other, the differences of their configurations, and limits that B is to keep."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any, Final

from dscampaign.db import queries
from dscampaign.db.records import CampaignRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.selection import RunCounts, find, find_run, find_runs
from dscampaign.orchestrator.campaign.titles import SEPARATOR, mixed_code
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.formatting import flat_fields, html_table, words
from dscampaign.orchestrator.report.measure.flags import clock_remark
from dscampaign.orchestrator.report.measure.load import read_runs
from dscampaign.orchestrator.report.measure.metrics import METRICS

from .baseline import BaselineComparison, compare_to_baseline, pairing_text
from .conditions import ALIKE, Condition, circumstances, conditions_of, few_repeats, find_condition, key_of, uncounted
from .ranking import infeasible
from .statistics import Estimate
from .wording import change, difference_text, field_text, intervals, loss_verdict
from .workloads import changed_alike

MISSING: Final = "–"

_USAGE: Final = "`campaign compare [NAME] A B`"
_LIMIT: Final = re.compile(r"\s*(?:(slower)\s*=\s*([\d.]{1,9})%|(loss)\s*=\s*([\d.]{1,9}(?:e-?\d\d?)?))\s*", re.ASCII)


@dataclass(frozen=True)
class Comparison:
    """A condition beside another, the baseline.

    Attributes:
        differences: (field of the configuration, left, right value).
        shared: the parts that their titles had in common, and no longer have.
    """

    left: Condition
    right: Condition
    differences: tuple[tuple[str, str, str], ...]
    result: BaselineComparison
    shared: str = ""

    @property
    def titles(self) -> tuple[str, str]:
        """Names of both for people; their technical names if the others are equal."""
        left, right = self.left, self.right
        return (left.title, right.title) if left.title != right.title else (left.name, right.name)

    @property
    def step_time(self) -> Estimate | None:
        """The right side's time of a step, of a token if steps are unequal, as a multiple of the left side's."""
        speed = self.result.times_baseline
        if speed is None:
            return None
        low, high = (bound and 1 / bound for bound in (speed.high, speed.low))
        return replace(speed, value=1 / speed.value, low=low, high=high)

    @property
    def time_name(self) -> str:
        """The name of that time: of geometric means, whereas `figures` are medians."""
        less, more = sorted(side.tokens_per_step or 0 for side in (self.left, self.right))
        return f"mean {'time per token' if self.result.in_tokens and more > (1 + ALIKE) * less else 'step time'}"

    def checks(self, limits: Sequence[Limit]) -> list[LimitCheck]:
        """Compare the interval of each difference with its limit.

        A limit fails if the whole interval is above it, passes if all of it is at most the limit; else it is undecided.
        """
        return [LimitCheck(limit, *_outcome(self, limit)) for limit in limits]


@dataclass(frozen=True)
class ComparedOperands:
    """The comparisons, by campaign the names of conditions that the other campaign lacks, and the campaigns."""

    comparisons: tuple[Comparison, ...]
    alone: tuple[tuple[str, tuple[str, ...]], ...] = ()
    campaigns: tuple[CampaignRow, ...] = ()

    def __repr__(self) -> str:
        return f"<{', '.join(f'{one.left.title} and {one.right.title}' for one in self.comparisons)}>"

    def _repr_html_(self) -> str:
        return "".join(
            html_table(" ".join(verdict(one)), ("", one.left.title, one.right.title), figures(one))
            for one in self.comparisons
        )


def compare_operands(store: Store, words: Sequence[str]) -> ComparedOperands:
    """Read and compare the operands of `[NAME] A B`: campaigns, conditions, single runs.

    Raises UserError if they are not two, or do not exist.
    """
    if len(words) not in (2, 3):
        raise UserError("name two runs, conditions or campaigns", _USAGE)
    if words[-1] == words[-2]:
        raise UserError(f"{words[-1]} is compared with itself", _USAGE)
    with store.read() as conn:
        campaigns = {row.name: row for row in queries.list_campaigns(conn)}
    conditions = cache(lambda name: conditions_of(read_runs(store, campaigns[name])))
    if len(words) == 2 and set(words) <= campaigns.keys():
        return _compare_campaigns(conditions, campaigns[words[0]], campaigns[words[1]])
    if len(words) == 2 and words[0] in campaigns and "/" not in words[1]:
        raise UserError(f"{words[0]} is a campaign, and {words[1]} is none", _USAGE)
    named = find(store, words[-3] if words[:-2] else None) if words[:-2] or len(campaigns) == 1 else None
    if named and (pairs := _that_differ_in(words[-2:], conditions(named.name))):
        margin = named.provenance.get("loss_margin")
        compared = {shared: compare(*pair, margin=margin, among=len(pairs)) for shared, pair in pairs.items()}
        return ComparedOperands(tuple(replace(one, shared=shared) for shared, one in compared.items()), (), (named,))

    def operand(word: str) -> tuple[str, Condition]:
        home, _, rest = word.partition("/")
        if rest and home in campaigns:
            return home, _titled(_named(store, rest, conditions(home), home), home)
        home = named.name if named else find_runs(store, [word])[0].name
        return home, _named(store, word, conditions(home), home)

    (home, left), (other, right) = map(operand, words[-2:])
    if {run.id for run in left.runs} & {run.id for run in right.runs}:
        raise UserError(f"{' and '.join(words[-2:])} have runs in common", _USAGE)
    one = compare(left, right, margin=campaigns[home].provenance.get("loss_margin"))
    return ComparedOperands((one,), campaigns=tuple(campaigns[name] for name in dict.fromkeys((home, other))))


def _that_differ_in(values: Sequence[str], conditions: Sequence[Condition]) -> dict[str, tuple[Condition, Condition]]:
    """Return the pairs whose titles differ in these two parts alone, by the other parts."""
    sides: list[dict[str, Condition]] = [{}, {}]
    for one in conditions:
        parts = one.title.split(SEPARATOR)
        for value, side in zip(values, sides, strict=True):
            if value in parts:
                side[SEPARATOR.join(part for part in parts if part != value)] = replace(one, title=value)
    left, right = sides
    return {shared: (one, right[shared]) for shared, one in left.items() if shared in right}


def compare(left: Condition, right: Condition, *, margin: float | None = None, among: int = 1) -> Comparison:
    """Compare two conditions; single runs count as a pair, also with different seeds.

    Args:
        margin: the spec's margin for equal losses, if set.
        among: comparisons made together.
    """
    if len(left.runs) == len(right.runs) == 1:
        right = replace(right, runs=(replace(right.runs[0], repeat=left.runs[0].repeat),))
    left, right = changed_alike([left, right])
    _, result = compare_to_baseline([left, right], left, margin, among)
    versions = differences(left.software, right.software)
    return Comparison(left, right, (*differences(left.runs[0].config, right.runs[0].config), *versions), result)


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the fields in which two configurations differ, with dots in the names of nested fields."""
    one, other = ({name: field_text(value) for name, value in flat_fields(side)} for side in (left, right))
    texts = ((name, one.get(name) or MISSING, other.get(name) or MISSING) for name in sorted({*one, *other}))
    yield from (row for row in texts if row[1] != row[2])


def figures(one: Comparison) -> list[tuple[str, str, str]]:
    """(figure, left value, right value) as text, as far as a side has it."""
    both = zip(_figures(one.left), _figures(one.right), strict=True)
    return [(name, left, right) for (name, left), (_, right) in both if left or right]


def verdict(one: Comparison) -> list[str]:
    """Return the results of the comparison, in sentences."""
    result, (left, right), sides = one.result, one.titles, (one.left, one.right)
    shown = [
        f"{side.name} is not compared: {reason.label}."
        for side in sides
        if not side.counted and (reason := infeasible(side))
    ]
    if mixed := mixed_code((side.name, _code(side)) for side in (one.left, one.right)):
        shown.append(f"{mixed} This may explain what differs.")
    if step_time := one.step_time:
        shown.append(f"{one.time_name.capitalize()}: {right} {change(step_time)} beside {left}: {words(result.order)}.")
        held = "; ".join(filter(None, (intervals(result.among), pairing_text([result]))))
        shown += [f"{held}."] if step_time.low is not None else []
    shown += (f"{reason.text[0].upper()}{reason.text[1:]}." for reason in circumstances(one.left, [one.right]))
    for side in sides:
        least_sure = sorted(side.counted, key=lambda run: -run.timing.clock_error if run.timing else -math.inf)
        shown += [f"{side.name}: {remark}." for remark in filter(None, map(clock_remark, least_sure))][:1]
    gap, unit = result.loss.difference, result.loss_unit
    apart = f"{right} {difference_text(result.loss, unit)}{unit} beside {left}: " if gap and gap.value else ""
    shown.append(f"{result.loss_is.capitalize()} loss: {apart}{loss_verdict(result.loss)}.")
    return shown


class LimitOutcome(StrEnum):
    """Whether a comparison keeps a limit; the data may be too few to decide."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Limit:
    """The most by which B may be worse than A: a part of the step time, or a difference of losses."""

    measure: str
    most: float
    text: str


@dataclass(frozen=True)
class LimitCheck:
    """A comparison beside a limit, with the evidence or the reason that the data cannot decide."""

    limit: Limit
    outcome: LimitOutcome
    reason: str


def limits_of(text: str) -> list[Limit]:
    """Return the limits in the text of `--fail-if`; raise UserError if it has a mistake."""
    limits: dict[str, Limit] = {}
    for part in text.split(","):
        try:
            slower, percent, loss, nats = _LIMIT.fullmatch(part).groups()  # type: ignore[union-attr]
            limit = Limit(slower or loss, float(percent) / 100 if percent else float(nats), part.strip())
        except (AttributeError, ValueError) as error:
            raise UserError(f'--fail-if: "{part}" is not a limit', "such as `slower=3%,loss=0.01`") from error
        if limits.setdefault(limit.measure, limit) is not limit:
            raise UserError(f"--fail-if has two limits for {limit.measure}")
    return list(limits.values())


def _outcome(one: Comparison, limit: Limit) -> tuple[LimitOutcome, str]:
    test, unit, sides = one.result.loss, one.result.loss_unit, (one.left, one.right)
    doubt = None
    if limit.measure == "slower":
        estimate, most, doubt = one.step_time, 1 + limit.most, next(circumstances(one.left, [one.right]), None)
        evidence = f"{one.time_name} {change(estimate)}" if estimate else "no step was timed"
    else:
        estimate, most = test.difference, limit.most
        evidence = f"{one.result.loss_is} loss {difference_text(test, unit)}{unit}" if estimate else test.reason
        left = dict(one.result.baseline.losses) if one.result.baseline else {}
        if any(not math.isfinite(loss) and math.isfinite(left.get(seed, 0.0)) for seed, loss in one.result.losses):
            return LimitOutcome.FAILED, test.reason
    doubt = doubt or few_repeats(sides, losses=limit.measure == "loss")
    if doubt or not estimate or not estimate.ends:
        return LimitOutcome.UNDECIDED, doubt.text if doubt else evidence
    low, high = estimate.ends
    if low > most:
        return LimitOutcome.FAILED, evidence
    if missing := uncounted(sides):  # a repeat that failed shows neither its time nor its loss
        return LimitOutcome.UNDECIDED, f"{evidence}; {missing.text}"
    return (LimitOutcome.PASSED, evidence) if high <= most else (LimitOutcome.UNDECIDED, f"{evidence}; add repeats")


def _figures(condition: Condition) -> list[tuple[str, str]]:
    counts = RunCounts.of(condition.runs)
    return [
        ("runs completed", f"{counts.completed} of {counts.total}{counts.note}"),
        *((metric.label, condition.text(name)) for name, metric in METRICS.items() if metric.label),
        ("code", _code(condition)),
        ("tries in all", str(sum(run.tries for run in condition.runs))),
    ]


def _code(condition: Condition) -> str:
    return ", ".join(dict.fromkeys(run.code for run in condition.runs if run.code))


def _compare_campaigns(
    conditions: Callable[[str], list[Condition]], left: CampaignRow, right: CampaignRow
) -> ComparedOperands:
    ours, theirs = ({key_of(one.params): one for one in conditions(row.name)} for row in (left, right))
    shared = [key for key in ours if key in theirs]
    if not shared:
        raise UserError(f"{left.name} and {right.name} have no condition with the same parameters")
    margin = left.provenance.get("loss_margin")
    compared = tuple(
        compare(_titled(ours[key], left.name), _titled(theirs[key], right.name), margin=margin, among=len(shared))
        for key in shared
    )
    sides = ((left.name, ours), (right.name, theirs))
    names = ((name, tuple(one.name for key, one in side.items() if key not in shared)) for name, side in sides)
    return ComparedOperands(compared, tuple((name, own) for name, own in names if own), (left, right))


def _titled(condition: Condition, campaign: str) -> Condition:
    return replace(condition, name=f"{campaign}/{condition.name}", title=f"{condition.title} ({campaign})")


def _named(store: Store, word: str, conditions: Sequence[Condition], campaign: str) -> Condition:
    if match := find_condition(word, conditions):
        condition, name = match
        alone = next((run for run in condition.runs if name == f"{condition.name}-r{run.repeat}"), None)
    else:
        _, row = find_run(store, [campaign, word])  # by its job
        condition, alone = next((one, run) for one in conditions for run in one.runs if run.id == row.id)
        name = row.name
    if alone:
        title = f"{condition.title}{SEPARATOR}repeat {alone.repeat + 1}"
        condition = replace(condition, name=name, title=title, runs=(alone,))
    return condition
