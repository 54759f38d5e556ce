"""Read the step and the metrics of one line of a script's output. In doubt a line has none: no number is wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from .metric_names import metric_name

Line = dict[str, float]
"""A line of the spool: `step`, and values by name."""

_SEPARATOR: Final = r"[\s:=\"']*"
_NUMBER: Final = (
    r"[-+]?(?>nan|inf(?:inity)?|[1-9]\d{0,2}(?:,\d{3})+\.\d+|\d+(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?)"
)
"""Never a part of a number (`?>`): 2.5 of `2.5x`. `1,234.5` has thousands; `2,345` may be 2.345."""
_ENDS: Final = r"(?![\w/%]|[.,]\d)"
_COUNT: Final = r"(?>([1-9]\d{0,2}(?:,\d{3}){1,3}|\d{1,12})(?:\.0+(?!\d))?)"

_STEP: Final = re.compile(
    r"(?<![a-z0-9_./-])(?:([a-z]+) +)?((?:[a-z]+[_./-])*)(global[_ ]?step|step|iteration|iter)(s?)"
    rf"{_SEPARATOR}[\[(#]*\s*{_COUNT}(?:(?:\s*/\s*|\s+of\s+){_COUNT})?(?![\w%/]|[.,:-]\d)",
    re.IGNORECASE,
)
_BAR: Final = re.compile(
    r"(?<![a-z0-9_./-])(?:([a-z]+) +)?(?:step|iteration|iter)s?:? +\d+%\|[^|]*\| *(\d{1,12})/(\d{1,12}) \[",
    re.IGNORECASE,
)
"""Of tqdm, whose percentage is no step."""
_WITHIN_NAME: Final = frozenset({"train", "trainer", "training", "current", "cur"})
_OVER_ALL: Final = frozenset({"global", "optimizer", "optim", "opt", "update"})
_NOT_OF_LINE: Final = re.compile(
    r"max(?:imum)?|total|num|warmup|micro|mini|sub|inner|accum(?:ulation)?|gradient|every|per|nan|skip(?:ped|ping)?"
    r"|sav(?:e|ing)|log(?:ging)?|best|prev(?:ious)?|next|last|remaining|first|start(?:ing)?|resum(?:e|ing)|from|until|to"
    r"|target|final|end|val|valid(?:ation|ate|ating)?|eval(?:uation|uate|uating)?|test(?:ing)?|dev|env(?:ironment)?|rollout"
    r"|diffusion|denoising|time|data",
    re.IGNORECASE,
)
"""Words before `step` that make it another number than the step of the line."""
_EPOCH: Final = re.compile(rf"(?<![a-z_./-])epoch{_SEPARATOR}[\[(#]*\s*(\d{{1,9}})(?!\d|\.\d)", re.IGNORECASE)
_EPOCH_ALONE: Final = re.compile(r"[-=*#\s]*epoch[\s:#\[]*(\d{1,9})(?:\s*/\s*\d+)?[\]\s:.=*#-]*", re.IGNORECASE)

_VALUE: Final = re.compile(
    r"(?<![a-z0-9_./-])(?:([a-z]+) +)??"
    r"((?:[a-z]+ )?(?:[a-z0-9]+[_/.-])*loss(?:[_/.-](?:step|epoch))?"
    r"(?:[ _/.-](?:train|training|val|valid|validation|eval|test)\b)?"
    r"|(?:[a-z0-9]+[_/.-])*(?:lr|learning[ _]rate|grad[ _]?norm))"
    rf"{_SEPARATOR}({_NUMBER}){_ENDS}",
    re.IGNORECASE,
)
_OF_MANY: Final = re.compile(
    r"best|lowest|min(?:imum)?|max(?:imum)?|mean|average|avg|running|smoothed|ema|epoch|final|last|prev(?:ious)?|target"
    r"|initial",
    re.IGNORECASE,
)
"""Words before `val loss` and the like that make it no loss of the step."""
_HELD_OUT: Final = re.compile(
    r"(?<![\w./-])(?:val|valid|validation|validate|validating|eval|evaluation|evaluate|evaluating|test|testing|dev)"
    r"(?![\w./-])",
    re.IGNORECASE,
)
_TRAINING: Final = re.compile(r"train", re.IGNORECASE)
_TIME: Final = re.compile(
    r"(?:^|[^a-z\s_./-]|[-./_]\s)\s*"
    r"((?:(?:step|iter|iteration)[ _])?(?:time|dt)|elapsed time per iteration)(?:(?: ?\(|_)(m?s)\b\)?)?"
    rf"{_SEPARATOR}({_NUMBER}) ?(ms\b)?(?![.,]\d)",
    re.IGNORECASE,
)
"""Without a word before: `data time`, `train_time` and `eval time` are other times. `step_avg` is of many steps."""
_DICT: Final = re.compile(r"^\{'[\w/.-]+': .*\}$")
_ITEM: Final = re.compile(rf"'([\w/.-]+)': '?({_NUMBER})'?[,}}]", re.IGNORECASE)


@dataclass
class Reading:
    """The metrics of a line.

    Attributes:
        line: its step and values.
        text: the line.
        total: number of steps beside the step, if there is one.
        epoch: the epoch in which the step may be counted; None if it is counted over all epochs.
        over_all: whether its name is that of a step counted over all epochs.
        bar: whether it is a turn of a progress bar, which may still have the values of the turn before.
    """

    line: Line
    text: str
    total: int | None = None
    epoch: int | None = None
    over_all: bool = False
    bar: bool = False

    @property
    def step(self) -> int:
        """Return the step on the line."""
        return int(self.line["step"])

    def is_turn_after(self, other: Reading) -> bool:
        """Return whether both are turns of a bar at the same step."""
        return self.bar and other.bar and (self.step, self.epoch) == (other.step, other.epoch)


def read_line(text: str) -> Reading | None:
    """Return the metrics of a line with a step and a loss; None of any other."""
    read = _step(text)
    if read is None or not {"loss", "eval_loss"} & (values := _values(text)).keys():
        return None
    if "eval_loss" not in values and not _HELD_OUT.search(text):
        values |= _step_time(text)
    read.line |= values
    if not read.over_all and (epoch := _EPOCH.search(text)):
        read.epoch = int(epoch[1])
    return read


def epoch_alone(text: str) -> int | None:
    """Return the epoch of a line that names only an epoch, above the lines of its steps."""
    match = _EPOCH_ALONE.fullmatch(text)
    return int(match[1]) if match else None


def is_dict(text: str) -> bool:
    """Return whether it looks like a log of the Trainer, which has no step."""
    return bool(_DICT.match(text)) and _step(text) is None


def logged(text: str) -> Line:
    """Return the metrics of a log of the Trainer. Its summary of the training has no loss of the last step."""
    values = {name: _number(number) for name, number in _ITEM.findall(text)}
    if "train_runtime" in values:
        return values
    named = {metric_name(name): value for name, value in values.items()}
    return named if {"loss", "eval_loss"} & named.keys() else {}


def _step(text: str) -> Reading | None:
    """Prefer a step over all epochs to a plain step, and that to an iteration, which may be a micro-batch.

    Return None if two of a kind differ, as in `loss 2.0 at step 9, best at step 5`.
    """
    ranked = [
        (3, Reading({"step": int(bar[2])}, text, int(bar[3]), bar=True))
        for bar in _BAR.finditer(text)
        if not _NOT_OF_LINE.fullmatch(bar[1] or "")
    ]
    for match in _STEP.finditer(text):
        before, joined, name, plural, step, total = (part.lower() for part in match.groups(""))
        words = {*re.findall(r"[a-z]+", joined)}
        if _NOT_OF_LINE.fullmatch(before) or (before == "of" and plural) or not words <= _WITHIN_NAME | _OVER_ALL:
            continue
        over_all = name.startswith("global") or bool((words | {before}) & _OVER_ALL)
        rank = 4 if over_all else 1 if plural else 3 if name == "step" else 2
        read = Reading({"step": int(_number(step))}, text, int(_number(total)) if total else None, over_all=over_all)
        ranked.append((rank, read))
    best = [read for rank, read in ranked if rank == max(ranked, key=lambda one: one[0])[0]]
    return best[0] if len({read.step for read in best}) == 1 else None


def _values(text: str) -> Line:
    values: Line = {}
    others, at = "", 0
    for match in _VALUE.finditer(text):
        others, at = others + text[at : match.start()], match.end()
        name = metric_name(match[2])
        of_other_data = name == "loss" and not _TRAINING.search(match[2]) and _HELD_OUT.search(others)
        if not of_other_data and not _OF_MANY.fullmatch(match[1] or ""):
            values.setdefault(name, _number(match[3]))
    return values


def _step_time(text: str) -> Line:
    """Return the step time. If the line counts iterations beside steps, an iteration's time is that of a part."""
    in_parts = {name.lower()[:4] for *_, name, _, _, _ in _STEP.findall(text)} >= {"step", "iter"}
    times = {
        _number(number) / (1e3 if (of_name or unit).lower() == "ms" else 1)
        for name, of_name, number, unit in _TIME.findall(text)
        if (of_name or unit) and (not in_parts or name.lower().startswith("step"))
    }
    return {"step_time": times.pop()} if len(times) == 1 else {}


def _number(text: str) -> float:
    return float(text.replace(",", ""))
