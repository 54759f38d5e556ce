"""Sections of a spec: `retry`, `prune`, `screen`, `metrics`, `retention`, `deepspeed`, `container`, `forward`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from dscampaign.orchestrator.errors import did_you_mean
from dscampaign.orchestrator.formatting import shorten
from dscampaign.orchestrator.user_files import expanded

from .field_types import Count, EnvText, Hint, Line, Name, Real, SpecSection, Text, Variable, Whole
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


_MOUNT: Final = re.compile(r"[/~][^\s,:]*(?::/[^\s,:]*(?::r[ow])?)?")
"""No runtime mounts a path with a space, a comma or a colon."""


def _mount(text: str) -> str:
    if not _MOUNT.fullmatch(text):
        raise Hint(
            f"{text!r} is not a mount",
            "write an absolute path, `/data`, or `/host/data:/data`, or `/host/data:/data:ro`",
        )
    return text


class ContainerConfig(SpecSection):
    """The container in which a run's ranks start ([how](cluster.md#containers)). The agent stays outside of it."""

    image: Name
    """Image, as the runtime takes it: a file (`.sqsh`, `.sif`), a folder, or a reference to a registry
    (`nvcr.io#nvidia/pytorch:25.01-py3` with pyxis, `docker://...` with Apptainer)."""
    runtime: Literal["pyxis", "apptainer", "charliecloud"]
    """Program that starts it: `pyxis` (Slurm's plugin for enroot), `apptainer` (or Singularity), `charliecloud`."""
    mounts: tuple[Annotated[Line, AfterValidator(_mount)], ...] = ()
    """Further folders to mount: `/data`, `/host/data:/data`, or with `:ro` read-only. `dir`, the code, `workdir`, your
    home folder, /dev/shm, and data that the spec names by an absolute path are mounted in any case."""
    workdir: Line | None = None
    """Folder of the image in which the ranks start, by its absolute path. Default: `workdir`."""
    env: dict[Variable, EnvText] = Field(default={})
    """Environment variables of the training in this image, over those in `env` and those of the image."""
    writable: bool = False
    """Let the training change files of the image. With pyxis and Apptainer the changes are gone with the attempt."""

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


TOOLS: Final = ("wandb", "tensorboard", "mlflow")


class WandbConfig(SpecSection):
    """Weights & Biases. Credentials come from `WANDB_API_KEY` or `wandb login`, never from here."""

    project: Text | None = None
    """Default: `WANDB_PROJECT`, or the campaign's name."""
    entity: Text | None = None
    """Team or user. Default: `WANDB_ENTITY`, or your own."""
    group: Text | None = None
    """Default: `WANDB_RUN_GROUP`, or the campaign's name."""
    mode: Literal["online", "offline"] | None = None
    """`offline` keeps the run in files, for `wandb sync` to upload later. Default: `WANDB_MODE`, or online."""
    tags: tuple[Text, ...] = ()
    """Tags in addition to the campaign's name."""


class TensorBoardConfig(SpecSection):
    """TensorBoard: one folder per run."""

    dir: Text | None = None
    """Absolute path of a folder that all nodes see; each run writes to `<campaign>/<run>` in it. Default:
    `tensorboard/<run>` in the campaign's folder."""

    @field_validator("dir")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is not None and not expanded(value).is_absolute():
            raise Hint("is not an absolute path", "jobs do not run in this folder; leave it out for the campaign's own")
        return value


class MlflowConfig(SpecSection):
    """MLflow. Credentials come from `MLFLOW_TRACKING_USERNAME` and the like, never from here."""

    tracking_uri: Text | None = None
    """The tracking server, such as `https://mlflow.example.org`. Required. Default: `MLFLOW_TRACKING_URI`."""
    experiment: Text | None = None
    """Default: `MLFLOW_EXPERIMENT_NAME`, or the campaign's name."""

    @field_validator("tracking_uri")
    @classmethod
    def _nameless(cls, value: str | None) -> str | None:
        if value and not re.match(r"[a-z][a-z0-9+-]*:|databricks$", value):
            raise Hint("is not a URL", "write https://HOST, or sqlite:////absolute/path for runs on one machine")
        return value


class ForwardConfig(SpecSection):
    """Tools that get each run's metrics while it trains: `[wandb, tensorboard]`, or a mapping with their options."""

    wandb: WandbConfig | None = None
    """Weights & Biases, see below."""
    tensorboard: TensorBoardConfig | None = None
    """TensorBoard, see below."""
    mlflow: MlflowConfig | None = None
    """MLflow, see below."""

    @model_serializer(mode="wrap")
    def _named_ones(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the tools that are not named: a null would name a tool without options."""
        return {tool: options for tool, options in dump(self).items() if options is not None}

    def options(self) -> dict[str, dict[str, Any]]:
        """The tools that are named, each with the options that are given."""
        given = self.model_dump(mode="json", exclude_none=True)
        return {tool: given[tool] for tool in TOOLS if tool in given}


def _as_mapping(value: Any) -> Any:
    """`wandb`, `[wandb, mlflow]` and `{wandb: }` name tools without options."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list):
        return {k: {} if v is None else v for k, v in value.items()} if isinstance(value, dict) else value
    tools: dict[str, Any] = {}
    for item in listed:
        for name, options in (item if isinstance(item, dict) else {str(item): None}).items():
            if name not in TOOLS:
                hint = did_you_mean(str(name), TOOLS, "write [wandb, tensorboard], or a mapping with options")
                raise Hint(f"{shorten(str(name), 40)} is not one of {', '.join(TOOLS)}", hint)
            tools[name] = {} if options is None else options
    return tools


Forward = Annotated[ForwardConfig, BeforeValidator(_as_mapping)]
"""The section in any of its forms."""
