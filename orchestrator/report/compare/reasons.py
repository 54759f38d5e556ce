"""Reasons against conditions and doubts about an answer: codes with fields, rendered here alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from dscampaign.orchestrator.formatting import some, words

from .wording import loss_gap

_FASTER: Final = "{names} is {number} × as fast, but {detail}"


class Why(StrEnum):
    """A reason against a condition, a doubt about an answer, or a remark on the data.

    The value is its code; `text` is for a note, and `short` for a sentence or a verdict.
    """

    text: str
    short: str

    def __new__(cls, code: str, text: str, short: str = "") -> Self:
        """Make a member of its code and its texts."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.text, member.short = text, short or words(code)
        return member

    UNFINISHED = "unfinished", "not finished", "not finished"
    ENDED = "ended", "{detail}"
    CHANGED = "changed_by_a_retry", "ran with {detail}; not compared"
    TIGHT = "memory_nearly_full", "takes {number} of the GPU's memory, above {detail}"
    ALLOCATOR = "allocator_retries", "the GPU's allocator had to retry: memory was nearly full"
    OVERFLOW = "gradients_overflowed", "skipped optimizer steps because gradients overflowed"
    LOSS_NOT_FINITE = "loss_not_finite", "a loss is not finite"
    LOSS_WORSE = "loss_worse", "{detail} loss is higher by {number}", "its loss is higher"
    LOSS_UNPROVEN = "loss_may_be_higher", "{detail} loss may be higher, by {number}", "its loss may be higher"
    NOT_MEASURED = "not_measured", "{detail} not measured", "{detail} was not measured"
    DIFFERENT_CODE = "different_code", "{detail} This may explain differences."
    PROVISIONAL = "others_unfinished", "provisional: {names} not finished", "others are not finished"
    FEW_RUNS = "few_runs", "only {number} each; add repeats", "only {number} each"
    IDENTICAL = (
        "identical_repeats",
        "repeats of {names} have the same loss at every step and count as one; use the seed",
        "identical repeats count once",
    )
    FEW_COUNT = "few_repeats_count", "only {detail} of {names} count; run the others again", "too few repeats count"
    NO_LOSSES = "no_losses", "no losses were found in {names}", "no losses were found"
    VARIES = (
        "repeats_vary",
        "repeats vary too much to separate it from {names}; add repeats",
        "{names} may be as {detail}",
    )
    LOSS_VARIES = (
        "losses_vary",
        "its loss may be up to {number} above the baseline's (margin: {detail}); add repeats",
        "its loss may be higher",
    )
    FASTER_UNPROVEN = "faster_but_loss_may_be_higher", f"{_FASTER}; add repeats", _FASTER
    FASTER_OUT = "faster_but_out", _FASTER, _FASTER
    DEVICES = "different_devices", "jobs that ask for the same ran on different devices: {detail}", "devices differ"
    VARIABLES = (
        "different_variables",
        "jobs inherited different values of {detail} from the shell ({names}); set them in `env`",
        "environments differ",
    )
    NEIGHBOURS = (
        "different_neighbours",
        "runs trained beside unequally many others on their nodes ({detail}), which may change step times",
        "neighbours on nodes differ",
    )
    IGNORED = "axis_without_effect", "{names} changes no digit of any loss: does the script read it?"
    ALIKE = "changed_alike", "retries ran all with {detail}: compared with each other"


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
        return self.end or reasons_text([self], short=True)

    @property
    def text(self) -> str:
        """The reason as text."""
        return reasons_text([self])


def reasons_text(reasons: Sequence[Reason], *, short: bool = False) -> str:
    """Return reasons with the same code as one text, with the range of their numbers."""
    first = reasons[0]
    numbers = [reason.number for reason in reasons if reason.number is not None]
    ends = dict.fromkeys(_number(first, value) for value in (min(numbers), max(numbers))) if numbers else {}
    details, names = list(dict.fromkeys(reason.detail for reason in reasons if reason.detail)), first.names
    return (first.code.short if short else first.code.text).format(
        number=" to ".join(ends) + first.unit,
        names=f"{len(names)} others"
        if short and len(names) > 1
        else " and ".join(names)
        if len(names) == 2
        else some(names, 3),
        detail=details[0] + (", and others" if len(details) > 1 else "") if details else "",
    )


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
