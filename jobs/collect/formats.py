"""The registry of log formats: tables of the forms in which training scripts print a step and its metrics, and names.

A line is read if exactly one step and at least one loss are certain: no number is wrong. A new form of step is a row of
`STEPS` with an example, and a new form of step time a row of `TIMES`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

Line = dict[str, float]  # a line of the spool: `step`, and values by name
LOSSES: Final = {"loss", "eval_loss"}
MAX_STEP: Final = 2**53  # beyond, a float skips whole numbers
_BETWEEN: Final = r"(?:[\s:=\"'\\]|->|\.{2,}|\bis(?= -?\d+\.\d))*(?:[a-z_.]*(?:tensor|array|float\d*)\()?\[?"
"""Between a name and its number, which a tensor or a list of one number may hold."""
_NUMBER: Final = (
    r"[-+]?(?>nan|inf(?:inity)?|[1-9]\d{0,2}(?:,\d{3})+\.\d+|\d+(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?)"
)
"""Never a part of a number (`?>`): 2.5 of `2.5x`. `1,234.5` has thousands; `2,345` may be 2.345."""
_COUNT: Final = r"(?>[1-9]\d{0,2}(?:,\d{3}){1,3}|\d{1,12})"
_BEGIN: Final = r"(?<![a-z0-9_./-])(?:(?P<before>[a-z]+) +)?"
_BAR: Final = r"\d+%\|[^|]*\| *(?P<step>\d{1,12})/(?P<total>\d{1,12}) \["
_OF_TOTAL: Final = rf"(?P<step>{_COUNT})(?:\.0it)? ?/ *(?P<total>{_COUNT})(?:it)?"


def _form(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def _counted(name: str) -> re.Pattern[str]:
    parts = r"_?(?:(?:train(?:er|ing)?|cur(?:rent)?)[_./-])*"
    total = rf"(?:(?:\s*/\s*|\s+of\s+)(?P<total>{_COUNT})(?:\.0+(?!\d))?)?"
    step = rf"(?P<step>{_COUNT})(?:\.0+(?!\d))?"
    return _form(rf"{_BEGIN}{parts}{name}(?:/(?:max|total)_steps)?{_BETWEEN}[\[(#]*\s*{step}{total}(?![\w%/]|[.,:-]\d)")


class StepForm(NamedTuple):
    """A form in which scripts print a step; `example`: a line with step 295 of 1,000 and loss 2.5."""

    pattern: re.Pattern[str]  # has the groups `step`, perhaps `total`, and perhaps `before`, the word before it
    example: str
    over_all: bool = False  # whether the step is certainly counted over all epochs
    counts: bool = False  # whether it may count something else: its total must fit the run's number of steps


def _count(pattern: str, example: str) -> StepForm:
    return StepForm(_form(pattern), example, counts=True)


_OVER_ALL: Final = r"(?:(?:global|optim(?:izer)?|opt|update)[_. -])+(?:step|iteration|iter)|global ?step|num_update"
_EPOCH_BEFORE: Final = r"epoch(?:\(train\))?[\s:=#\[(]*\d++(?:\s*/\s*\d++)?[\])]?[\s:,|-]*"
_TRAINING_COUNT: Final = r"\b(?:(?:train(?:ing)?|progress)\b:?|iter\(train\))"
_BEFORE_COUNT: Final = rf"^(?:[a-z]+:[\w.]+:)?|[|\]>━╸╺]|(?<!\w)-+|\]:|:\d\d(?:[.,]\d+)?\]?|{_TRAINING_COUNT}"
"""The begin of the line, of its part after a time or the name of a logger, or a term for training."""

_STEP: Final = _counted("step")
_ITERATION: Final = _counted("(?:iteration|iter|itr|it)")

STEPS: Final = (
    StepForm(_form(r"\bstep\W+\d+\S* \(global\W+(?P<step>\d{1,12})\)"), "step 5 (global 295): loss 2.5", over_all=True),
    StepForm(_form(r"^\d+\|(?P<step>\d{1,12})\|loss"), "2|295|Loss: 2.5:  30%|# | 3/10 [", over_all=True),  # torchtune
    StepForm(_form(r"writer\.py:\d+\] \[(?P<step>\d+)\]"), "writer.py:48] [295] loss=2.5", over_all=True),  # JAX's clu
    StepForm(_counted(rf"(?:{_OVER_ALL})s?"), "global_step: 295 | loss: 2.5", over_all=True),  # NeMo, Lightning, LitGPT
    StepForm(_form(rf"{_BEGIN}(?:step|iteration|iter)s?:? +{_BAR}"), "Steps: 30%|# | 295/1000 [loss=2.5]"),  # Diffusers
    StepForm(_STEP, "step 295/1000: loss tensor(2.5, device='cuda:0')"),  # nanoGPT, torchtitan, torchtune, OLMo
    StepForm(_ITERATION, "iter 295: loss 2.5, mfu 12.30%"),  # nanoGPT, Megatron-LM, Detectron2
    StepForm(_counted("(?<!of )(?:step|iteration|iter)s"), "steps: 295 loss: 2.5"),  # DeepSpeed, GPT-NeoX
    StepForm(_counted("updates?"), "update 295 -> loss 2.5"),  # loops of one's own
    # PyTorch's first tutorial and ESPnet; timm, but not `Train Epoch: 0 [640/60000 (1%)]`, which has samples
    _count(r"(?:^\[\d+, +|\b\d+epoch:train:\d+-)(?P<step>\d{1,12})(?:\](?= loss)|batch:)", "[1,   295] loss: 2.5"),
    _count(rf"\btrain: \d+ +\[ *{_OF_TOTAL} +\( *\d+%\)\]", "Train: 0 [ 295/1000 ( 30%)]  Loss: 2.5 (2.6)"),
    # Accelerate, Lightning, others with tqdm
    _count(rf"(?P<before>^|(?<![a-z0-9_./-])[a-z]+)?:? *{_BAR}", " 30%|##9  | 295/1000 [02:00<04:51, loss=2.5]"),
    # Composer, PyTorch's tutorials and examples
    _count(rf"{_BEGIN}(?:mini-?)?batch(?:es|_idx)?[\s:=#\[(]*{_OF_TOTAL}(?![\w%/.])", "[batch=295/1000]: loss 2.5"),
    _count(rf"(?<![\w./-]){_OF_TOTAL} (?:batches|steps|iterations|iters|it)\b", "|  295/ 1000 batches | loss  2.5 |"),
    _count(  # Keras, Rich, OpenMMLab, torchvision
        rf"(?:{_BEFORE_COUNT}|{_EPOCH_BEFORE})[ \t]*[\[(]? *{_OF_TOTAL}(?!\) epoch)"  # a rank
        r" ?[\])]?(?=[\s:,|-]|$)(?! *\(\d| \d\d:\d)",
        "[295/1000] loss=2.5 time=0.12s",
    ),
)
"""The first form that a line has gives its step; iterations beside steps may count micro-batches."""

_OF_HELD_OUT_DATA: Final = r"val(?:id(?:at(?:ion|e|ing))?)?|eval(?:uat(?:ion|e|ing))?|test(?:ing)?|dev"
_OTHER_STEPS: Final = _form(
    r"max(?:imum)?|total|num|warmup|micro|mini|sub|inner|local|accum(?:ulation)?|gradient|every|per|nan|skip(?:ped|ping)?"
    r"|sav(?:e|ing)|log(?:ging)?|best|prev(?:ious)?|next|last|remaining|first|start(?:ing)?|resum(?:e|ing)|from|until|to"
    rf"|target|final|end|{_OF_HELD_OUT_DATA}|env(?:ironment)?|rollout|diffusion|denoising|time|data"
)
"""Before `step`, these make it another number than the step of the line."""
EPOCH: Final = _form(
    rf"(?:(?<![a-z_./-])epoch(?:\(train\))?{_BETWEEN}[\[(#]*\s*|\btrain: (?=\d+ +\[)|^\[(?=\d+, +\d+\] loss)"
    r"|\b(?=\d+epoch:))(\d{1,9})(?!\d|\.\d)"
)
EPOCH_OF_ALL: Final = _form(rf"(?<![a-z_./-])epoch[\s:=#\[(]*{_OF_TOTAL}(?![\w%/.])")
EPOCH_ALONE: Final = _form(r"[-=*#\s]*epoch[\s:#\[]*(\d{1,9})(?:\s*/\s*\d+)?[\]\s:.=*#-]*")
LOSS: Final = _form("loss|entropy|xent")  # in every line with a value; a look for it costs little
_VALUE: Final = _form(
    r"(?<![a-z0-9_./-])(?:([a-z]+)\.? +(?:of +)?(?:the +)?)??"
    r"((?:(?!(?:and|at|current|has|nan|inf|now|of|the|with) )[a-z]+ )?(?:(?:[a-z0-9]+[_/.-])+(?:[a-z]+ )?)?"
    r"(?:(?:[a-z]*entropy|ce)?loss|[a-z]*cross_?entropy|xent)(?:[_/.-](?:step|epoch))?"
    r"(?:[ _/.-](?:train|training|val|valid|validation|eval|test)\b)?(?:/total)?"
    r"|(?:[a-z0-9]+[_/.-])*(?:lr|learning[ _]rate|g(?:rad)?[ _]?norm))"
    r"(?:(?<=lr)(?:0|-[a-z]+/(?:group|pg)0))?"
    rf"(?: ?(?:\([a-z ]+\) )?(?:at|after) (?:step|iteration|iter) {_COUNT}(?: \| lm[ _]loss)?)?(?: value)?"
    rf"{_BETWEEN}({_NUMBER})(?![\w/%]|[.,]\d)"
)
"""Name and number of a value; the step may stand between them, or the optimizer after its learning rate."""
_OF_MANY: Final = _form(
    r"best|lowest|min(?:imum)?|max(?:imum)?|mean|average|avg|running|smoothed|ema|epoch|final|last|prev(?:ious)?|target"
    r"|initial|peak|base"
)
"""Before `val loss` and the like, these make it no loss of the step."""
HELD_OUT_TERM: Final = rf"(?<![\w./-])(?:{_OF_HELD_OUT_DATA})(?![\w./-])"
_HELD_OUT: Final = _form(HELD_OUT_TERM)
_HELD_OUT_LINE: Final = _form(
    rf"(?:split|phase|mode|type|stage|subset|dataset)[\"'\\]*\s?[:=]\s?[\"'\\]*{HELD_OUT_TERM}"
    rf"|[\[(]{HELD_OUT_TERM}[\])](?!\W*\d)"
)
"""A term for the whole line, also after its loss."""
_NAMES: Final = {
    "loss": "loss lm_loss ce_loss gpt_loss total_loss loss_total loss_step step_loss batch_loss minibatch_loss"
    " mini_batch_loss reduced_loss crossentropyloss cross_entropy_loss cross_entropy languagecrossentropy xent",
    "lr": "lr learning_rate optim_lr",
    "grad_norm": "grad_norm gradnorm gradient_norm gnorm total_grad_norm optim_total_grad_norm",
    "step_time": "step_time",
    "tokens_per_s": "tokens_per_s tokens_per_sec tokens_per_second",
}
"""Names of metrics, without terms for the kind of data."""
_NAME: Final = {other: name for name, others in _NAMES.items() for other in others.split()}
_OF_HELD_OUT: Final = {"loss_epoch", *(name for name in _NAMES["loss"].split() if not re.search("step|batch", name))}
"""Lightning's `val_loss_epoch` is of all held-out data, its `val_loss_step` of a batch."""
_HELD_OUT_WORDS: Final = frozenset({"val", "valid", "validation", "eval", "evaluation", "test", "dev"})
_WORD: Final = re.compile("[a-z]+")
_TRAINING_WORDS: Final = frozenset({"train", "training"})

_OTHER_WORK: Final = _form(
    r"\b(?:sanity|finding|predict\w*|inferenc\w*|generat\w*|calibrat\w*|tokeniz\w*|profil\w*|benchmark\w*|warm-?up|sampling)\b"
)
"""Counts of these are not counts of steps."""
OF_OTHER_RANK: Final = _form(
    r"(?:^|[^\w\s-])\s*(?:default|(?:(?:global|local)[_ ]?)?rank)[\s:=#_]*[1-9]\d*\b(?!\s*/)"
    r"|^\[\d+,[1-9]\d*\]<std|(?:^|[\[(<])(?:gpu|cuda|worker|proc(?:ess)?)[\s:=#_-]*[1-9]\d*(?:[\])>:]|\s*\|)"
)
"""The number of a rank other than 0, at the begin of a line or by name; not `slowest rank 3` nor `LoRA rank 8`."""
_NOT_NOW: Final = _form(
    r"\b(?:(?:re)?load(?:ed|ing checkpoint)|re(?:stor|sum)(?:ed|ing)|(?:best|saved) [^|,;]*step)\b|\| train \| epoch"
)
"""Values of another step, or a mean over an epoch, as of fairseq."""

_AFTER: Final = r"(?:^|[^a-z\s_./-]|[-./_]\s)\s*"
"""Not after a name: `data time`, `train_time` and `eval time` are other times. `step_avg` is of many steps."""
_OF_STEP: Final = r"(?:step|iter|iteration)[ _](?:time|dt)|dt"
_TIME: Final = rf"{_AFTER}(?P<name>{_OF_STEP}|time|elapsed time per iteration)"
_UNIT: Final = r"(?P<unit>m?s)(?:ec(?:ond)?s?)?"
_TOOK: Final = rf"(?P<number>{_NUMBER})"
TIMES: Final = (
    _form(rf"{_TIME}(?: ?\(|_)(?P<unit>m?s)\b\)?{_BETWEEN}{_TOOK}(?![.,]\d)"),
    _form(rf"{_TIME}{_BETWEEN}{_TOOK} ?(?P<unit>ms)\b"),
    _form(rf"{_AFTER}(?P<name>{_OF_STEP}){_BETWEEN}{_TOOK} ?{_UNIT}\b"),
    _form(
        rf"{_AFTER}(?P<name>step_time)(?P<unit>){_BETWEEN}{_TOOK}(?![\w%/µ]|[.,:]\d| ?(?:[mµun]?s|sec|min|h)[a-z]*\b)"
    ),
    _form(rf"(?<![\w.,]){_TOOK} ?{_UNIT}/(?P<name>step|iter(?:ation)?|batch)\b"),
    _form(rf"(?<![\w.,])(?P<unit>ms)/(?P<name>step|batch){_BETWEEN}{_TOOK}(?![\w.,/])"),
)
"""Forms of step times. `step_time` alone is in seconds, as for `report()`.

A `time` in seconds without the name of a step may be that since the beginning.
"""

_HEADING: Final = re.compile(r"^\S.*[\]:]\s*$")
_DICT: Final = re.compile(r"^(?:\S.*[>:\]-] )?\{'[\w/.-]+': .*\}$")
_ITEM: Final = _form(rf"'([\w/.-]+)': '?({_NUMBER})'?[,}}]")


@dataclass
class Reading:
    """The metrics of a line."""

    line: Line
    text: str
    total: int = 0  # number of steps beside the step, 0 for none
    epoch: int | None = None  # the epoch in which the step may be counted; None if it is counted over all epochs
    counts: bool = False  # whether its form is that of a count, see `StepForm`
    bar: bool = False  # whether it is a turn of a progress bar, which may still have the values of the turn before
    iteration: bool = False

    @property
    def step(self) -> int:
        """Return the step on the line."""
        return int(self.line["step"])


def read_line(text: str, run_steps: int | None, epoch: int | None = None, *, held_out: bool = False) -> Reading | None:
    """Return the metrics of a line with a step and a loss; None of any other.

    `run_steps`: number of steps of the whole run; `epoch`: of the line above, for a line that names none; `held_out`:
    read a mere `loss`, too, if its line is about held-out data. It may be of a batch.
    """
    read = _step(text, run_steps, epoch)
    if read is None or _NOT_NOW.search(text):
        return None
    values = read_values(text, held_out=held_out)
    if not values.keys() & ({"loss"} if read.counts else LOSSES):
        return None
    if "eval_loss" not in values and not _HELD_OUT.search(text):
        values |= _step_time(text)
    read.line |= values
    return read


def read_heading(text: str, run_steps: int | None = None) -> Reading | None:
    """Return the step of a line above indented lines of metrics, as Composer and OLMo print; None of any other."""
    if not _HEADING.search(text) or _HELD_OUT.search(text) or _NOT_NOW.search(text):
        return None
    return _step(text, run_steps, None)


def read_below(text: str) -> Line:
    """Return the metrics of a line below a heading; {} if it has a step of its own."""
    return {} if _step(text, None, None) else read_values(text)


def read_stepless(text: str) -> Line:
    """Return the metrics of a line without a step; {} if it has a step, or losses of something else."""
    others = not LOSS.search(text) or _NOT_NOW.search(text) or _OTHER_WORK.search(text)
    return {} if others or read_line(text, None) else read_values(text)


def in_parts(text: str) -> bool:
    """Return whether a line counts iterations beside its step: they are parts of steps."""
    step, iteration = _STEP.search(text), _ITERATION.search(text)
    return bool(step and iteration and _number(step["step"]) != _number(iteration["step"]))


def logged(text: str) -> Line | None:
    """Return the metrics of a log of the Trainer, which has no step, {} if it has no loss; None of another line.

    The Trainer's summary of the training has no loss of the last step.
    """
    if not _DICT.match(text) or _step(text, None, None):
        return None
    values = {name: _number(number) for name, number in _ITEM.findall(text)}
    if "train_runtime" in values:
        return values
    metrics = {metric_name(name): value for name, value in values.items()}
    return metrics if LOSSES & metrics.keys() else {}


def _step(text: str, run_steps: int | None, epoch: int | None) -> Reading | None:
    epoch = int(match[1]) if (match := EPOCH.search(text)) else epoch
    for form in STEPS:
        reads = {
            int(_number(match["step"])): int(_number(match.groupdict().get("total") or "0"))
            for match in form.pattern.finditer(text)
            if not _OTHER_STEPS.fullmatch(match.groupdict().get("before") or "")
        }
        bar = _BAR in form.pattern.pattern
        if form.counts:
            other = _HELD_OUT.search(text) or _OTHER_WORK.search(text)
            fit = {s: n for s, n in reads.items() if s <= n and _fits(n, run_steps, epoch, bar=bar)}
            reads = {} if other else fit if "total" in form.pattern.groupindex else reads
        if len(reads) > 1:  # as in `loss 2.0 at step 9, best at step 5`
            return None
        for step, total in reads.items():
            iteration = form.pattern is _ITERATION
            return Reading({"step": step}, text, total, None if form.over_all else epoch, form.counts, bar, iteration)
    return None


def _fits(total: int, run_steps: int | None, epoch: int | None, *, bar: bool) -> bool:
    """Return whether it is the number of the run's steps, or of an epoch's: a bar's may be left earlier."""
    if not (run_steps and total) or epoch is None:
        return total == run_steps
    return run_steps % total == 0 or (bar and total > run_steps and epoch <= 1)


def read_values(text: str, *, held_out: bool = False) -> Line:
    """Return the metrics of the training on a line, and its loss on held-out data. Argument as of `read_line`."""
    values: Line = {}
    others, at = "", 0
    is_held_out = _HELD_OUT_LINE.search(text)
    for match in _VALUE.finditer(text):
        others, at = others + text[at : match.start(2)], match.end()
        name = metric_name(match[2])
        if name == "loss" and "train" not in match[2].lower() and (is_held_out or _HELD_OUT.search(others)):
            name = "eval_loss" if held_out else ""
        of_step = name == "loss" and re.search("step|batch", match[2].lower())  # beside it, `loss` may be a mean
        if name and (of_step or name not in values) and not _OF_MANY.fullmatch(match[1] or ""):
            values[name] = _number(match[3])
    return values


def _step_time(text: str) -> Line:
    """Return the step time. If the line counts iterations beside steps, an iteration's time is that of a part."""
    in_parts = _STEP.search(text) and _ITERATION.search(text)
    times = {
        round(_number(match["number"]) * (1e-3 if match["unit"].lower() == "ms" else 1), 9)
        for pattern in TIMES
        for match in pattern.finditer(text)
        if not in_parts or match["name"].lower().startswith("step")
    }
    return {"step_time": times.pop()} if len(times) == 1 else {}


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def metric_name(tag: str, *, folder: str = "") -> str:
    """Return `loss` for `train/loss`, `eval_loss` for `Loss/val`; an unknown metric keeps its name.

    `folder`: the name of the folder that holds it: `validation`, or `Loss_val`, as torch's `add_scalars` does.
    """
    words = _WORD.findall(tag.lower())
    training = [word for word in words if word in _TRAINING_WORDS]
    name = "_".join(word for word in words if word not in _HELD_OUT_WORDS | _TRAINING_WORDS | {"metrics"})
    if len(training) > 1 and " " not in tag:  # `train/train_loss` is the Trainer's mean over all steps
        return tag
    # A folder must name only held-out data, beside the metric itself: a host or a run may be called `dev-1`.
    others = {*_WORD.findall(folder.lower())} - {*words}
    if not _HELD_OUT_WORDS.isdisjoint(words) or (others and not training and others <= _HELD_OUT_WORDS):
        return "eval_loss" if name in _OF_HELD_OUT else tag
    return _NAME.get(name, tag)
