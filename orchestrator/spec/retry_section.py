"""`retry` and `prune`: reactions to a failed attempt, and to a run that cannot win."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator

from .field_types import Count, Hint, Real, SpecSection, Text

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
