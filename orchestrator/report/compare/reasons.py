"""Reasons against conditions and doubts about an answer: codes with fields, rendered here alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dscampaign.orchestrator.formatting import some, words

from .wording import loss_gap


class Why(StrEnum):
    """A reason against a condition, a doubt about an answer, or a remark on the data."""

    UNFINISHED = "unfinished"
    SCREENED = "screened_out"
    ENDED = "ended"
    CHANGED = "changed_by_a_retry"
    TIGHT = "memory_nearly_full"
    ALLOCATOR = "allocator_retries"
    OVERFLOW = "gradients_overflowed"
    LOSS_NOT_FINITE = "loss_not_finite"
    LOSS_WORSE = "loss_worse"
    LOSS_UNPROVEN = "loss_may_be_higher"
    NOT_MEASURED = "not_measured"
    DIFFERENT_CODE = "different_code"
    PROVISIONAL = "others_unfinished"
    FEW_RUNS = "few_runs"
    IDENTICAL = "identical_repeats"
    FEW_COUNT = "few_repeats_count"
    NO_LOSSES = "no_losses"
    VARIES = "repeats_vary"
    LOSS_VARIES = "losses_vary"
    FASTER_UNPROVEN = "faster_but_loss_may_be_higher"
    FASTER_OUT = "faster_but_out"
    DEVICES = "different_devices"
    VARIABLES = "different_variables"
    NEIGHBOURS = "different_neighbours"
    SHARED_NODE = "shared_node"
    IGNORED = "axis_without_effect"
    ALIKE = "changed_alike"


@dataclass(frozen=True)
class Reason:
    """A code with its fields.

    Attributes:
        names: conditions or axes that the reason is about; the failure classes of a condition that ended.
        number: a share, a difference of losses, or a number of runs.
        unit: follows the number.
        detail: a name or a text from outside, as an error message.
        end: how the runs of a condition ended, without the cause.
    """

    code: Why
    names: tuple[str, ...] = ()
    number: float | None = None
    unit: str = ""
    detail: str = ""
    end: str = ""

    @property
    def label(self) -> str:
        """The reason in a few words."""
        return self.end or _LABELS.get(self.code, words(self.code)).format(detail=self.detail)

    @property
    def text(self) -> str:
        """The reason as text."""
        return reasons_text([self])


_LABELS: Final[Mapping[Why, str]] = {
    Why.UNFINISHED: "not finished",
    Why.NOT_MEASURED: "{detail} not measured",
    Why.LOSS_WORSE: "its loss is higher",
    Why.LOSS_UNPROVEN: "its loss may be higher",
}
_FASTER: Final = "{names} is {number} × as fast, but {detail}"
_TEXTS: Final[Mapping[Why, str]] = {
    **_LABELS,
    Why.SCREENED: "screened out: {detail}",
    Why.ENDED: "{detail}",
    Why.CHANGED: "ran with {detail}; not compared",
    Why.TIGHT: "takes {number} of the GPU's memory, above {detail}",
    Why.ALLOCATOR: "the GPU's allocator had to retry: memory was nearly full",
    Why.OVERFLOW: "skipped optimizer steps because gradients overflowed",
    Why.LOSS_NOT_FINITE: "a loss is not finite",
    Why.LOSS_WORSE: "{detail} loss is higher by {number}",
    Why.LOSS_UNPROVEN: "{detail} loss may be higher, by {number}",
    Why.FASTER_UNPROVEN: f"{_FASTER}; add repeats",
    Why.FASTER_OUT: _FASTER,
    Why.DIFFERENT_CODE: "{detail} This may explain differences.",
    Why.PROVISIONAL: "provisional: {names} not finished",
    Why.FEW_RUNS: "only {number} each; set `{detail}: 3`",
    Why.IDENTICAL: "repeats of {names} have the same loss at every step and count as one; use the seed",
    Why.FEW_COUNT: "only {detail} of {names} count; run the others again",
    Why.NO_LOSSES: "no losses were found in {names}",
    Why.VARIES: "repeats vary too much to separate it from {names}; add repeats",
    Why.LOSS_VARIES: "its loss may be up to {number} above the baseline's (margin: {detail}); add repeats",
    Why.DEVICES: "jobs that ask for the same ran on different devices: {detail}",
    Why.VARIABLES: "jobs inherited different values of {detail} from the shell ({names}); set them in `env`",
    Why.NEIGHBOURS: "runs trained beside unequally many others on their nodes ({detail}), which may change step times",
    Why.SHARED_NODE: "step times were measured beside {number} other runs on the same node",
    Why.ALIKE: "retries ran all with {detail}: compared with each other",
    Why.IGNORED: "{names} changes no digit of any loss: does the script read it?",
}
_SHORT: Final[Mapping[Why, str]] = {
    Why.NOT_MEASURED: "{detail} was not measured",
    Why.PROVISIONAL: "others are not finished",
    Why.FEW_RUNS: "only {number} each",
    Why.IDENTICAL: "identical repeats count once",
    Why.FEW_COUNT: "too few repeats count",
    Why.NO_LOSSES: "no losses were found",
    Why.VARIES: "{names} may be as {detail}",
    Why.LOSS_VARIES: "its loss may be higher",
    Why.FASTER_UNPROVEN: _FASTER,
    Why.FASTER_OUT: _FASTER,
    Why.DEVICES: "devices differ",
    Why.VARIABLES: "environments differ",
    Why.NEIGHBOURS: "neighbours on nodes differ",
}
"""Doubts in the sentence of an answer."""


def reasons_text(reasons: Sequence[Reason], *, short: bool = False) -> str:
    """Return reasons with the same code as one text, with the range of their numbers."""
    first = reasons[0]
    numbers = [reason.number for reason in reasons if reason.number is not None]
    ends = dict.fromkeys(_number(first, value) for value in (min(numbers), max(numbers))) if numbers else {}
    details = list(dict.fromkeys(reason.detail for reason in reasons if reason.detail))
    return (_SHORT if short else _TEXTS)[first.code].format(
        number=" to ".join(ends) + first.unit,
        names=_names_text(first.names, short=short),
        detail=details[0] + (", and others" if len(details) > 1 else "") if details else "",
    )


def _names_text(names: Sequence[str], *, short: bool) -> str:
    if short and len(names) > 1:
        return f"{len(names)} others"
    return " and ".join(names) if len(names) == 2 else some(names, 3)


def grouped_reasons(reasons: Iterable[tuple[str, Reason]]) -> list[tuple[tuple[str, ...], tuple[Reason, ...]]]:
    """Group conditions by the codes, and failure classes, of the reasons against them; order stays."""
    groups: dict[object, list[tuple[str, Reason]]] = {}
    for name, reason in reasons:
        groups.setdefault((reason.code, reason.names), []).append((name, reason))
    return [(tuple(name for name, _ in group), tuple(reason for _, reason in group)) for group in groups.values()]


def _number(reason: Reason, value: float) -> str:
    if reason.code is Why.TIGHT:
        return f"{value:.0%}"
    if reason.code in (Why.FASTER_UNPROVEN, Why.FASTER_OUT):
        return f"{value:.2f}"
    if reason.code in (Why.LOSS_WORSE, Why.LOSS_UNPROVEN, Why.LOSS_VARIES):
        return loss_gap(value, reason.unit, "")
    return f"{value:,.0f}"
