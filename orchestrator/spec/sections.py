"""Sections of a spec: `retry`, `prune`, `metrics`, `reconciler`, `deepspeed`, `container`, `forward`, ..."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from dscampaign.orchestrator.user_files import expanded

from .field_types import Count, EnvText, Hint, Line, Name, Real, SpecSection, Text, Variable, Whole
from .slurm_section import SlurmConfig, SlurmTime

ConfigChange = Literal["activation_checkpointing", "offload_optimizer", "zero_stage"]


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        hint = "write \\( for a parenthesis, \\. for a dot, and single quotes around it all"
        raise Hint(f"is not a regular expression: {error}", hint) from error


class RetryRule(SpecSection):
    """The meaning of an error of your own training; the first match counts."""

    match: Text
    """Regular expression for errors of ranks and lines of logs. Slow searches are given up."""
    action: Literal["stop", "retry", "exclude_node", "smaller"]
    """`stop` fails the run; `retry` counts against crash; `exclude_node` retries on other nodes and counts against
    infra; `smaller` takes a smaller micro-batch."""
    hint: str = ""
    """Advice to show with the failure."""

    @field_validator("match")
    @classmethod
    def _is_narrow(cls, value: str) -> str:
        pattern = _compiled(value)
        if pattern.search("") or (pattern.search("x") and pattern.search("0")):
            raise Hint("matches nearly every line", "use text that only your error has")
        return value


class RetryConfig(SpecSection):
    """How often to retry a run, by [the kind of failure](failures.md)."""

    crash: Count = 3
    """Retries after failures of the training, and unexplained ones."""
    infra: Count = 8
    """After failures of nodes, GPUs, network or storage."""
    oom: Count = 4
    """With a smaller micro-batch, after GPU memory ran out."""
    host_oom: Count = 2
    """With more host memory, after it ran out."""
    backoff_s: Count = 30
    """Seconds before the first retry; doubled each time."""
    max_backoff_s: Count = 1800
    """Most seconds before a retry."""
    allow: tuple[ConfigChange, ...] = ()
    """Changes to try in turn if memory runs out at micro-batch 1: activation_checkpointing, offload_optimizer,
    zero_stage (the next higher)."""
    exclude_h: Real = Field(default=24.0, ge=0)
    """Hours to exclude [a bad node](failures.md#bad-nodes); 0 excludes none."""
    hang_factor: Real = Field(default=20.0, ge=0)
    """Multiple of the 99th percentile of step times after which a run [hangs](failures.md#hangs); 0 disables this."""
    hang_min_s: Count = 600
    """Fewest seconds without a step before a run hangs."""
    rules: tuple[RetryRule, ...] = ()
    """Errors of your own training."""


class PruneConfig(SpecSection):
    """When to end a run that cannot win. It fails as `pruned`; `campaign retry` resumes it."""

    step_time_s: Real | None = Field(default=None, gt=0)
    """Longest median step time, over at least 20 steps after `train.untimed_steps`."""
    not_finite: bool = False
    """End a run of your own script if its newest ten losses are not finite."""


_METRIC_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,99}")
_EXAMPLE: Final = "write {step: 'step (\\d+)', loss: 'loss[=:] *([\\d.eE+-]+)'}"


def _pattern(value: Any) -> Any:
    if not isinstance(value, str):
        raise Hint("expected a regular expression in quotes", _EXAMPLE)
    groups = _compiled(value).groups
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
    """[Thinning of old metrics](results.md#thinning-old-metrics) by `campaign db prune`."""

    keep_every: Annotated[Whole, Field(ge=2, le=1_000_000)]
    """Keep every n-th step, and every n-th sample of each GPU."""
    after_days: Annotated[Real, Field(ge=0, le=36_500)] = 30.0
    """Days since the run ended."""


def _address(text: str) -> str:
    if not re.fullmatch(r"env:[A-Za-z_]\w*|file:[/~].*", text):
        hint = "name a variable, `env:SLACK_URL`, or a file of your own, `file:~/.slack-url`"
        raise Hint("is not where the address is: it may be a secret", hint)
    return text


class NotifyConfig(SpecSection):
    """[Messages](watching.md#messages) about the campaign: each event once."""

    on: tuple[Literal["settled", "failed", "held", "budget"], ...] = ("settled", "failed", "held", "budget")
    """`settled`: nothing is left to do; `failed`, `held`: the first run; `budget`: `limits.gpu_hours` is used up."""
    command: Line | None = None
    """Shell line that gets the message on standard input, and as JSON in `CAMPAIGN_MESSAGE`."""
    url: Annotated[str, AfterValidator(_address)] | None = None
    """`env:NAME` or `file:/path` of an address for [apprise](https://appriseit.com/services/). Needs the extra
    `notify`."""

    @model_validator(mode="after")
    def _somewhere(self) -> NotifyConfig:
        if not (self.command or self.url):
            raise Hint("names no way", "write `url: env:NAME`, or a `command`")
        return self


class ReconcilerConfig(SpecSection):
    """The job that [retries](watching.md#keeping-a-reconciler-running): one core, 2 GB."""

    partition: Text | None = None
    """Default: as in `slurm`, with its qos."""
    account: Text | None = None
    """Default: as in `slurm`."""
    qos: Text | None = None
    """Default: as in `slurm`, unless partition is given."""
    time: SlurmTime | None = None
    """Default: a day, or the partition's limit."""

    def options(self, slurm: SlurmConfig) -> dict[str, str]:
        """Return the options of sbatch."""
        same = {"partition": slurm.partition, "account": slurm.account, "qos": None if self.partition else slurm.qos}
        return {name: value for name, value in {**same, **self.model_dump(exclude_none=True)}.items() if value}


_MAPPINGS: Final = (
    *("bf16", "fp16", "compile", "optimizer", "torch_autocast", "checkpoint", "zero_optimization"),
    *("optimizer.params", "zero_optimization.offload_optimizer", "zero_optimization.offload_param"),
)
"""Parts of `deepspeed` that this program reads; DeepSpeed itself is asked about all values."""


def _deepspeed(value: dict[str, Any]) -> dict[str, Any]:
    for path in _MAPPINGS:
        around, _, name = path.rpartition(".")
        section = (value.get(around) or {}) if around else value
        if not isinstance(section.get(name) or {}, dict):
            raise Hint(f"expected a mapping of fields for {path}", f"write `{name}: {{...}}`")
    return value


DeepSpeedSection = Annotated[dict[str, Any], AfterValidator(_deepspeed)]
"""The section as it is given: its digest must not depend on the form in which this program reads a value."""


_MOUNT: Final = re.compile(r"[/~][^\s,:]*(?::/[^\s,:]*(?::r[ow])?)?")
"""No runtime mounts a path with a space, a comma or a colon."""


def _mount(text: str) -> str:
    if not _MOUNT.fullmatch(text):
        raise Hint(f"{text!r} is not a mount", "write an absolute path, `/data`, or `/host/data:/data`, or with `:ro`")
    return text


class ContainerConfig(SpecSection):
    """The [container](containers.md) in which a run's ranks start."""

    image: Name
    """File (`.sqsh`, `.sif`), folder, or address in a registry (`nvcr.io#nvidia/pytorch:25.01-py3` with pyxis,
    `docker://...` with Apptainer)."""
    runtime: Literal["pyxis", "apptainer", "charliecloud"]
    """`pyxis` (Slurm's plugin for enroot), `apptainer` (or Singularity), `charliecloud`."""
    mounts: tuple[Annotated[Line, AfterValidator(_mount)], ...] = ()
    """Further folders: `/data`, `/host/data:/data`, or with `:ro` read-only."""
    workdir: Line | None = None
    """Start folder inside. Default: the spec's `workdir`."""
    env: dict[Variable, EnvText] = Field(default={})
    """Variables that win over `env` and the image."""
    writable: bool = False
    """Let the training change files of the image; with pyxis and Apptainer for one attempt."""

    @model_validator(mode="after")
    def _of_its_runtime(self) -> ContainerConfig:
        if self.runtime == "charliecloud" and "://" in self.image:
            raise Hint(f"{self.image} is not an image of Charliecloud", "`ch-image pull` it, and name the folder")
        if self.runtime == "charliecloud" and any(mount.endswith(":ro") for mount in self.mounts):
            raise Hint("Charliecloud mounts no folder read-only", "leave out `:ro`")
        if self.runtime == "apptainer" and "#" in self.image:
            hint = f"write `docker://{self.image.replace('#', '/', 1)}`"
            raise Hint(f"{self.image} is not an image of Apptainer", hint)
        if self.workdir is not None and not self.workdir.startswith("/"):
            raise Hint(f"workdir {self.workdir} is not an absolute path", "name a folder of the image, or leave it out")
        return self


_Tool = Literal["wandb", "tensorboard", "mlflow"]
TOOLS: Final = get_args(_Tool)


class WandbConfig(SpecSection):
    """Weights & Biases."""

    project: Text | None = None
    """Default: `WANDB_PROJECT`, or the campaign's name."""
    entity: Text | None = None
    """Team or user. Default: `WANDB_ENTITY`, or your own."""
    group: Text | None = None
    """Default: `WANDB_RUN_GROUP`, or the campaign's name."""
    mode: Literal["online", "offline"] | None = None
    """`online`, or `offline` for files that `wandb sync` uploads. Default: `WANDB_MODE`, or online."""
    tags: tuple[Text, ...] = ()
    """Tags beside the campaign's name."""


class TensorBoardConfig(SpecSection):
    """TensorBoard: one folder per run."""

    dir: Text | None = None
    """Absolute path that all nodes see, for `<campaign>/<run>`. Default: the campaign's folder."""

    @field_validator("dir")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is not None and not expanded(value).is_absolute():
            raise Hint("is not an absolute path", "jobs do not run in this folder; leave it out for the campaign's own")
        return value


class MlflowConfig(SpecSection):
    """MLflow."""

    tracking_uri: Text | None = None
    """URL of the server. Default: `MLFLOW_TRACKING_URI`."""
    experiment: Text | None = None
    """Default: `MLFLOW_EXPERIMENT_NAME`, or the campaign's name."""

    @field_validator("tracking_uri")
    @classmethod
    def _nameless(cls, value: str | None) -> str | None:
        if value and not re.match(r"[a-z][a-z0-9+-]*:|databricks$", value):
            raise Hint("is not a URL", "write https://HOST, or sqlite:////absolute/path for runs on one machine")
        return value


class ForwardConfig(SpecSection):
    """[Tools](tools.md#forwarding) that get each run's metrics: a list, or a mapping with options."""

    wandb: WandbConfig | None = None
    """Weights & Biases."""
    tensorboard: TensorBoardConfig | None = None
    """TensorBoard."""
    mlflow: MlflowConfig | None = None
    """MLflow."""

    def options(self) -> dict[str, dict[str, Any]]:
        """The tools that are named, each with the options that are given."""
        return self.model_dump(mode="json", exclude_none=True)


def _as_mapping(value: Any) -> Any:
    """`[wandb, mlflow]` and `{wandb: }` name tools without options."""
    if isinstance(value, list) and (unknown := [name for name in value if name not in TOOLS]):
        raise Hint(f"{unknown[0]!r} is no tool", f"write [{', '.join(TOOLS)}], or a mapping with options")
    named = dict.fromkeys(value) if isinstance(value, list) else value
    return {tool: {} if own is None else own for tool, own in named.items()} if isinstance(named, dict) else named


Forward = Annotated[ForwardConfig, BeforeValidator(_as_mapping, json_schema_input_type=list[_Tool] | ForwardConfig)]
"""The section in any of its forms."""
