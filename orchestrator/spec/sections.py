"""The smaller sections of a spec: `retry`, `prune`, `screen`, `objective`, `metrics`, `retention` and `deepspeed`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    field_validator,
)

from .field_types import Count, Hint, Real, SpecSection, Text, Whole
from .slurm_section import SlurmTime

ConfigChange = Literal["activation_checkpointing", "offload_optimizer", "zero_stage"]


class RetryRule(SpecSection):
    """The meaning of an error of your own training; takes precedence over the built-in rules."""

    match: Text
    """Regular expression, searched in every rank's error and in each line of the logs. A search that takes too long,
    as nested repetitions do, is given up."""
    action: Literal["stop", "retry", "exclude_node", "smaller"]
    """`stop` fails the run. `retry` retries it and counts against crash. `exclude_node` retries it on other nodes and
    counts against infra. `smaller` treats it as out of memory and retries with a smaller micro-batch."""
    hint: str = ""
    """Advice, shown with the failure."""

    @field_validator("match")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            compiled = re.compile(value)
            everything = compiled.search("") or (compiled.search("x") and compiled.search("0"))
        except (re.error, OverflowError, RecursionError) as error:
            raise Hint(f"is not a regular expression: {error}", "write \\( for a parenthesis, \\. for a dot") from error
        if everything:
            raise Hint("matches nearly every line", "use text that only your error has")
        return value


class RetryConfig(SpecSection):
    """How often to retry a run, by the kind of failure. A preemption or a time limit counts against nothing."""

    crash: Count = 3
    """Retries after failures of the training itself, and after unexplained ones."""
    infra: Count = 8
    """Retries after failures of nodes, GPUs, network or storage."""
    oom: Count = 4
    """Retries with a smaller micro-batch after running out of GPU memory."""
    host_oom: Count = 2
    """Retries with more host memory after running out of it."""
    backoff_s: Count = 30
    """Seconds before the first retry; doubled for each further retry."""
    max_backoff_s: Count = 1800
    """Maximum seconds before a retry."""
    allow: tuple[ConfigChange, ...] = ()
    """Changes that may be tried, one after another, if memory runs out at micro-batch 1: activation_checkpointing,
    offload_optimizer, zero_stage (one higher each time). They change the measured run, and every table marks them."""
    exclude_h: Real = Field(default=24.0, ge=0)
    """Hours for which to exclude a bad node; 0 excludes none."""
    hang_factor: Real = Field(default=20.0, ge=0)
    """A run that makes no step for this many times the 99th percentile of its step time is cancelled and resumed; time
    for compiling, saving and evaluating does not count. 0 disables this."""
    hang_min_s: Count = 600
    """Minimum seconds without a step before a run counts as hanging."""
    rules: tuple[RetryRule, ...] = ()
    """Errors of your own training and their meaning; the first match counts."""


class PruneConfig(SpecSection):
    """When to end a run early that cannot win. It fails as `pruned`, and `campaign retry` starts it again."""

    step_time_s: Real | None = Field(default=None, gt=0)
    """End a run whose steps take longer than this: the median of at least 20 after `train.untimed_steps`.
    Default: no limit."""
    not_finite: bool = False
    """End a run of your own script whose newest ten losses are not finite. The built-in training ends by itself."""


PARETO: Final = "pareto"
_WITHIN: Final = re.compile(r"within\s+([0-9]+(?:\.[0-9]+)?)\s*%")
_WARM_UP_PART: Final = 10


def _keep(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise Hint(f"{value} keeps nothing", "keep at least 1")
        return value
    text = " ".join(str(value).lower().split())
    if text == PARETO or (_WITHIN.fullmatch(text) and isinstance(value, str)):
        return text
    raise Hint(f"{value!r} is no rule", "write `pareto`, a number (3), or `within 10%`")


class ScreenConfig(SpecSection):
    """A short run of each point of the matrix before any runs in full."""

    steps: Annotated[Whole, Field(ge=2, le=2**31 - 1)]
    """Optimizer steps of a screening run. The learning rate decays over these; the warm-up is at most a tenth of
    them."""
    keep: Annotated[int | str, BeforeValidator(_keep)] = PARETO
    """Points to run in full, among points that do the same work: `pareto` those that no other beats in speed and
    memory (with `objective: loss` or `time-to-loss`: in speed and loss); `3` the best three by `objective`;
    `within 10%` all that are at most so much worse than the best."""
    time: SlurmTime | None = None
    """Time limit of a screening run's job. Default: that of the others."""

    def shortened(self, warmup_steps: int) -> dict[str, Any]:
        """Return the changes of `train` for a screening run, from a full run with this warm-up."""
        return {
            "steps": self.steps,
            "epochs": None,
            "warmup_steps": min(warmup_steps, self.steps // _WARM_UP_PART),
            "checkpoint_every": None,
            "keep_best": False,
            "eval_every": None,
            "profile_at": None,
        }


def share_of(keep: str) -> float:
    """The part by which the rule `within 10%` lets a figure be worse than the best, such as 0.1."""
    found = _WITHIN.fullmatch(keep)
    assert found is not None
    return float(found[1]) / 100


_METRIC_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,99}")
_EXAMPLE: Final = "write {step: 'step (\\d+)', loss: 'loss[=:] *([\\d.eE+-]+)'}"


def _pattern(value: Any) -> Any:
    if not isinstance(value, str):
        raise Hint("expected a regular expression in quotes", _EXAMPLE)
    try:
        groups = re.compile(value).groups
    except (re.error, OverflowError, RecursionError) as error:
        hint = "write \\( for a parenthesis, \\. for a dot, and single quotes around it all"
        raise Hint(f"is not a regular expression: {error}", hint) from error
    if groups != 1:
        hint = "put parentheses around the number alone, (?:...) around anything else"
        raise Hint(f"has {groups} groups, expected 1: the number", hint)
    return value


def _names(value: dict[str, str]) -> dict[str, str]:
    for name in value:
        if not _METRIC_NAME.fullmatch(name) or name in ("ts", "event"):
            raise Hint(f"{name!r} cannot be the name of a metric", "use letters, digits and _ (eval_loss)")
    if value and "step" not in value:
        raise Hint("lacks step, the pattern of the optimizer step", _EXAMPLE)
    if len(value) == 1:
        raise Hint("names no metric beside step", _EXAMPLE)
    return value


Metrics = Annotated[dict[str, Annotated[str, BeforeValidator(_pattern)]], AfterValidator(_names)]
"""Regular expressions by metric, and for the step."""


class RetentionConfig(SpecSection):
    """Metrics that `campaign db prune` leaves of runs that ended long ago ([how](results.md#thinning-old-metrics))."""

    keep_every: Annotated[Whole, Field(ge=2, le=1_000_000)]
    """Keep a step, and a sample of each GPU, in so many."""
    after_days: Annotated[Real, Field(ge=0, le=36_500)] = 30.0
    """Days since the last attempt of a run ended."""


_MAPPINGS: Final = {
    (): ("bf16", "fp16", "compile", "optimizer", "torch_autocast", "checkpoint", "zero_optimization"),
    ("zero_optimization",): ("offload_optimizer", "offload_param"),
    ("optimizer",): ("params",),
}
"""Parts of `deepspeed` that this program reads; DeepSpeed itself is asked about all values."""


def _deepspeed(value: dict[str, Any]) -> dict[str, Any]:
    for path, names in _MAPPINGS.items():
        section = value.get(path[0]) or {} if path else value
        for name in names:
            if not isinstance(section.get(name) or {}, dict):
                raise Hint(f"expected a mapping of fields for {'.'.join((*path, name))}", f"write `{name}: {{...}}`")
    return value


DeepSpeedSection = Annotated[dict[str, Any], AfterValidator(_deepspeed)]
"""The section as it is given: its digest must not depend on the form in which this program reads a value."""
