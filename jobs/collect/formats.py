"""Tables of the forms in which training scripts print a step and its metrics.

A line is read if exactly one step and at least one loss are certain: no number is wrong. A new form of step is a row of
`STEPS`, a new form of step time a row of `TIMES`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from .metric_names import metric_name

Line = dict[str, float]
"""A line of the spool: `step`, and values by name."""

MAX_STEP: Final = 2**53
"""Beyond, a float skips whole numbers."""

_BETWEEN: Final = r"[\s:=\"']*(?:tensor\()?"
_NUMBER: Final = (
    r"[-+]?(?>nan|inf(?:inity)?|[1-9]\d{0,2}(?:,\d{3})+\.\d+|\d+(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?)"
)
"""Never a part of a number (`?>`): 2.5 of `2.5x`. `1,234.5` has thousands; `2,345` may be 2.345."""
_COUNT: Final = r"(?>[1-9]\d{0,2}(?:,\d{3}){1,3}|\d{1,12})"
_BEGIN: Final = r"(?<![a-z0-9_./-])(?:(?P<before>[a-z]+) +)?"
_BAR: Final = r"\d+%\|[^|]*\| *(?P<step>\d{1,12})/(?P<total>\d{1,12}) \["


def _form(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def _counted(name: str) -> re.Pattern[str]:
    """Return the pattern of a named step, such as `train_step: [1,200/5,000]`."""
    parts = r"(?:(?:train(?:er|ing)?|cur(?:rent)?)[_./-])*"
    total = rf"(?:(?:\s*/\s*|\s+of\s+)(?P<total>{_COUNT})(?:\.0+(?!\d))?)?"
    step = rf"(?P<step>{_COUNT})(?:\.0+(?!\d))?"
    return _form(rf"{_BEGIN}{parts}{name}{_BETWEEN}[\[(#]*\s*{step}{total}(?![\w%/]|[.,:-]\d)")


class StepForm(NamedTuple):
    """A form in which scripts print a step.

    Attributes:
        pattern: has the groups `step` and `before`, the word before it, and perhaps `total`.
        example: a part of a line.
        source: prints it.
        over_all: whether the step is certainly counted over all epochs.
        of_run: whether it is a step only if its total is the run's number of steps.
    """

    pattern: re.Pattern[str]
    example: str
    source: str
    over_all: bool = False
    of_run: bool = False


_OVER_ALL: Final = r"(?:(?:global|optim(?:izer)?|opt|update)[_. -])+(?:step|iteration|iter)|global ?step"

_STEP: Final = _counted("step")
_ITERATION: Final = _counted("(?:iteration|iter)")

STEPS: Final = (
    StepForm(_counted(rf"(?:{_OVER_ALL})s?"), "global_step: 295", "NeMo, Lightning, LitGPT", over_all=True),
    StepForm(_form(rf"{_BEGIN}(?:step|iteration|iter)s?:? +{_BAR}"), "Steps:  30%|##9  | 295/1000 [", "Diffusers"),
    StepForm(_STEP, "step 295/1000", "nanoGPT, torchtitan, torchtune, PyTorch's tutorials"),
    StepForm(_ITERATION, "iter 295:", "nanoGPT, Megatron-LM, Detectron2"),
    StepForm(_counted("(?<!of )(?:step|iteration|iter)s"), "steps: 295", "DeepSpeed"),
    StepForm(_form(rf"(?P<before>^){_BAR}"), " 30%|##9  | 295/1000 [", "Accelerate", of_run=True),
    StepForm(_form(rf"{_BEGIN}:? *{_BAR}"), "Training:  30%|##9  | 295/1000 [", "tqdm", of_run=True),
)
"""The first form that a line has gives its step; iterations beside steps may count micro-batches."""

_OTHER_STEPS: Final = _form(
    r"max(?:imum)?|total|num|warmup|micro|mini|sub|inner|accum(?:ulation)?|gradient|every|per|nan|skip(?:ped|ping)?"
    r"|sav(?:e|ing)|log(?:ging)?|best|prev(?:ious)?|next|last|remaining|first|start(?:ing)?|resum(?:e|ing)|from|until|to"
    r"|target|final|end|val|valid(?:ation|ate|ating)?|eval(?:uation|uate|uating)?|test(?:ing)?|dev|env(?:ironment)?|rollout"
    r"|diffusion|denoising|time|data"
)
"""Before `step`, these make it another number than the step of the line."""
_EPOCH: Final = _form(rf"(?<![a-z_./-])epoch{_BETWEEN}[\[(#]*\s*(\d{{1,9}})(?!\d|\.\d)")
_EPOCH_ALONE: Final = _form(r"[-=*#\s]*epoch[\s:#\[]*(\d{1,9})(?:\s*/\s*\d+)?[\]\s:.=*#-]*")

_VALUE: Final = _form(
    r"(?<![a-z0-9_./-])(?:([a-z]+) +)??"
    r"((?:[a-z]+ )?(?:[a-z0-9]+[_/.-])*loss(?:[_/.-](?:step|epoch))?"
    r"(?:[ _/.-](?:train|training|val|valid|validation|eval|test)\b)?"
    r"|(?:[a-z0-9]+[_/.-])*(?:lr|learning[ _]rate|grad[ _]?norm))"
    rf"{_BETWEEN}({_NUMBER})(?![\w/%]|[.,]\d)"
)
_OF_MANY: Final = _form(
    r"best|lowest|min(?:imum)?|max(?:imum)?|mean|average|avg|running|smoothed|ema|epoch|final|last|prev(?:ious)?|target"
    r"|initial"
)
"""Before `val loss` and the like, these make it no loss of the step."""
_HELD_OUT: Final = _form(
    r"(?<![\w./-])(?:val|valid|validation|validate|validating|eval|evaluation|evaluate|evaluating|test|testing|dev)"
    r"(?![\w./-])"
)
_TRAINING: Final = _form("train")

_TIME: Final = (
    r"(?:^|[^a-z\s_./-]|[-./_]\s)\s*(?P<name>(?:(?:step|iter|iteration)[ _])?(?:time|dt)|elapsed time per iteration)"
)
"""Not after a name: `data time`, `train_time` and `eval time` are other times. `step_avg` is of many steps."""
TIMES: Final = (
    (_form(rf"{_TIME}(?: ?\(ms\)|_ms\b){_BETWEEN}(?P<number>{_NUMBER})(?![.,]\d)"), 1e-3),
    (_form(rf"{_TIME}(?: ?\(s\)|_s\b){_BETWEEN}(?P<number>{_NUMBER})(?![.,]\d)"), 1.0),
    (_form(rf"{_TIME}{_BETWEEN}(?P<number>{_NUMBER}) ?ms\b"), 1e-3),
    (_form(rf"(?<![\w.,])(?P<number>{_NUMBER}) ?ms/(?P<name>step)\b"), 1e-3),
    (_form(rf"(?<![\w.,])(?P<number>{_NUMBER}) ?s/(?P<name>step)\b"), 1.0),
)
"""Forms of step times, each with its unit in seconds."""

_DICT: Final = re.compile(r"^\{'[\w/.-]+': .*\}$")
_ITEM: Final = _form(rf"'([\w/.-]+)': '?({_NUMBER})'?[,}}]")


@dataclass
class Reading:
    """The metrics of a line.

    Attributes:
        line: its step and values.
        text: the line.
        total: number of steps beside the step, 0 for none.
        epoch: the epoch in which the step may be counted; None if it is counted over all epochs.
        over_all: whether its name is that of a step counted over all epochs.
        bar: whether it is a turn of a progress bar, which may still have the values of the turn before.
    """

    line: Line
    text: str
    total: int = 0
    epoch: int | None = None
    over_all: bool = False
    bar: bool = False

    @property
    def step(self) -> int:
        """Return the step on the line."""
        return int(self.line["step"])


def read_line(text: str, run_steps: int | None = None) -> Reading | None:
    """Return the metrics of a line with a step and a loss; None of any other."""
    read = _step(text, run_steps)
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


def logged(text: str) -> Line | None:
    """Return the metrics of a log of the Trainer, which has no step, {} if it has no loss; None of another line.

    The Trainer's summary of the training has no loss of the last step.
    """
    if not _DICT.match(text) or _step(text, None):
        return None
    values = {name: _number(number) for name, number in _ITEM.findall(text)}
    if "train_runtime" in values:
        return values
    named = {metric_name(name): value for name, value in values.items()}
    return named if {"loss", "eval_loss"} & named.keys() else {}


def _step(text: str, run_steps: int | None) -> Reading | None:
    for form in STEPS:
        reads = {
            int(_number(match["step"])): int(_number(match.groupdict().get("total") or "0"))
            for match in form.pattern.finditer(text)
            if not _OTHER_STEPS.fullmatch(match["before"] or "")
        }
        if form.of_run:
            reads = {step: total for step, total in reads.items() if total == run_steps and not _HELD_OUT.search(text)}
        if len(reads) > 1:  # as in `loss 2.0 at step 9, best at step 5`
            return None
        for step, total in reads.items():
            over_all = form.over_all or form.of_run  # a bar of the whole run counts over all epochs
            return Reading({"step": step}, text, total, over_all=over_all, bar=_BAR in form.pattern.pattern)
    return None


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
    in_parts = _STEP.search(text) and _ITERATION.search(text)
    times = {
        round(_number(match["number"]) * unit_s, 9)
        for pattern, unit_s in TIMES
        for match in pattern.finditer(text)
        if not in_parts or match["name"].lower().startswith("step")
    }
    return {"step_time": times.pop()} if len(times) == 1 else {}


def _number(text: str) -> float:
    return float(text.replace(",", ""))
