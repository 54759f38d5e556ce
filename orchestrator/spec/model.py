"""The fields of a spec. Every field's docstring is its documentation, see docs/spec.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Strict, field_validator, model_validator

from dscampaign.db.records import WARM_UP_STEPS
from dscampaign.jobs.shared.ds_config import render
from dscampaign.jobs.shared.layout import Beside

from .command_line import Launcher, taken_apart, words_of
from .field_types import (
    Count,
    EnvText,
    Hint,
    Line,
    Lines,
    Name,
    Positive,
    Real,
    Scalar,
    SpecSection,
    Variable,
    Whole,
    Word,
)
from .objective import Objective
from .search_section import SearchConfig
from .sections import (
    ContainerConfig,
    DeepSpeedSection,
    Forward,
    ForwardConfig,
    Metrics,
    NotifyConfig,
    PruneConfig,
    ReconcilerConfig,
    RetentionConfig,
    RetryConfig,
)
from .slurm_section import MemorySize, SlurmConfig, parse_mem_mb

Executor = Literal["slurm", "local"]
Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
Strategy = Literal[
    "ddp", "zero0", "zero1", "zero2", "zero3", "zero1-offload", "zero2-offload", "zero3-offload", "zero3-offload-full",
    "zero-infinity", "fsdp2", "fsdp2-offload",
]  # fmt: skip
STRATEGIES: Final[dict[str, dict[str, Any]]] = {
    "ddp": {"engine": "ddp", "zero_stage": 0, "offload": "none"},
    **{f"zero{stage}": {"engine": "deepspeed", "zero_stage": stage, "offload": "none"} for stage in range(4)},
    **{f"zero{s}-offload": {"engine": "deepspeed", "zero_stage": s, "offload": "optimizer"} for s in (1, 2, 3)},
    "zero3-offload-full": {"engine": "deepspeed", "zero_stage": 3, "offload": "full"},
    "zero-infinity": {"engine": "deepspeed", "zero_stage": 3, "offload": "nvme"},
    "fsdp2": {"engine": "fsdp2", "zero_stage": 0, "offload": "none"},
    "fsdp2-offload": {"engine": "fsdp2", "zero_stage": 0, "offload": "full"},
}
"""The fields that a strategy stands for."""
AUTO: Final = "auto"  # the micro-batch that is searched for


class DatasetConfig(SpecSection):
    """The text. `dataset: wikitext` is short for `dataset: {path: wikitext}`."""

    path: Name
    """Name on the hub, a text, jsonl or parquet file, or a folder of them."""
    name: Name | None = None
    """Configuration of a hub data set (`wikitext-103-raw-v1`)."""
    split: Name | None = None
    """Split to train on, a slice of its records (`train[:20%]`), or the beginning of paths in a folder. Default:
    `train`; all files of a folder without `eval_split`."""
    text_field: str = "text"
    """Field that holds the text."""
    eval_path: Name | None = None
    """Held-out file or folder."""
    eval_split: Name | None = None
    """Held-out split."""
    eval_fraction: Real = Field(default=0.05, ge=0, lt=1)
    """Share of the text, at its end, to hold out otherwise."""
    packing: bool = True
    """`false` makes a [padded sample](training.md#padded-samples) of each record."""
    max_tokens: Positive | None = None
    """Maximum number of tokens to prepare. A hub data set is then [streamed](training.md#data-sets)."""


class TrainConfig(SpecSection):
    """The experiment; a `command` gets its fields as placeholders and variables."""

    model: Name | dict[str, Any] | None = None
    """A name (`gpt2`), a folder, or a configuration (`{model_type: gpt2, n_layer: 2}`)
    ([models](training.md#models))."""
    pretrained: bool = False
    """Start from published weights."""
    tokenizer: Name | None = None
    """Hub name, folder, or `bytes` for one token per byte. Default: the model's own."""
    dataset: Annotated[
        DatasetConfig | None,
        BeforeValidator(
            lambda value: {"path": value} if isinstance(value, str) else value,
            json_schema_input_type=str | DatasetConfig | None,
        ),
    ] = None
    """Text to train on."""
    seq_len: Positive = 1024
    """Tokens per sample."""
    global_batch: Positive | None = None
    """Samples per optimizer step over all ranks ([batches](#batches))."""
    micro_batch: Positive | Literal["auto"] | None = None
    """Samples per forward pass on a rank. Default: the largest divisor of its share up to 8. `auto` searches for [the
    fastest](training.md#the-fastest-micro-batch)."""
    steps: Positive | None = None
    """Optimizer steps; or set epochs."""
    epochs: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] | None = None
    """Passes over the text; or set steps."""
    precision: Precision = "bf16"
    """`fp32`, `tf32` (fp32 with matrix products rounded to 10 bits of mantissa), `bf16`, `fp16` with dynamic loss
    scaling, or [`fp8`](training.md#fp8)."""
    strategy: Strategy | None = None
    """[Name](training.md#strategies) for engine, zero_stage and offload."""
    engine: Literal["deepspeed", "ddp", "fsdp2"] = "deepspeed"
    """`deepspeed`; `ddp`, PyTorch's DistributedDataParallel; `fsdp2`, its `fully_shard`."""
    zero_stage: Annotated[Whole, Field(ge=0, le=3)] = 0
    """1 shards optimizer states, 2 also gradients, 3 also parameters."""
    offload: Literal["none", "optimizer", "full", "nvme"] = "none"
    """`optimizer` moves optimizer states to host memory (ZeRO 1 to 3), `full` the parameters too, `nvme` both to
    nvme_path (ZeRO 3)."""
    fsdp2_reduce: Literal["each", "last"] = "each"
    """Reduce gradients after `each` micro-batch, or after the `last` of a step: less communication, but whole fp32
    gradients on every rank."""
    nvme_path: Line | None = None
    """Absolute path of a folder on a fast local disk of each node. Needs libaio."""
    lr: Real = Field(default=3e-4, gt=0)
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """Decay after warm-up: `constant`, `linear`, `cosine`."""
    schedule_steps: Positive | None = None
    """Steps over which the learning rate decays. Default: `steps`."""
    warmup_steps: Count = 0
    """Steps of linear warm-up from 0."""
    min_lr_ratio: Real = Field(default=0.1, ge=0, le=1)
    """Final learning rate as a share of the peak."""
    weight_decay: Real = Field(default=0.1, ge=0)
    """Weight decay of AdamW."""
    beta1: Real = Field(default=0.9, ge=0, lt=1)
    """Decay rate of AdamW's first moment."""
    beta2: Real = Field(default=0.95, ge=0, lt=1)
    """Decay rate of AdamW's second moment."""
    eps: Real = Field(default=1e-8, gt=0)
    """Epsilon of AdamW."""
    grad_clip: Real = Field(default=1.0, ge=0)
    """Norm to clip gradients to; 0 disables clipping."""
    seed: Annotated[Whole, Field(ge=0, le=2**63 - 1)] = 42
    """Seed of weights and sample order; repeat r uses seed + r."""
    dropout: Real = Field(default=0.0, ge=0, lt=1)
    """Dropout of the model."""
    checkpoint_every: Positive | None = None
    """Steps between checkpoints. Default: none; an interrupted run starts again."""
    keep_checkpoints: Positive = 2
    """Number of newest checkpoints to keep."""
    keep_best: bool = False
    """Also keep the checkpoint with the lowest held-out loss among evaluated steps: make eval_every and
    checkpoint_every multiples."""
    eval_every: Positive | None = None
    """Steps between evaluations. Default: only at the end."""
    eval_batches: Positive | None = None
    """Maximum number of batches per evaluation. Default: all held-out text."""
    activation_checkpointing: bool = False
    """Recompute activations: less memory, about a third slower."""
    compile: bool = False
    """Use torch.compile."""
    deepcompile: bool = False
    """Use DeepSpeed's compiler passes, on GPUs with ZeRO 1 to 3; implies `compile`."""
    deepspeed_patches: bool = True
    """`false` trains with [DeepSpeed as installed](training.md#deepspeed-as-installed)."""
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    """`auto`: PyTorch's causal attention without a mask tensor if the model allows it, else `sdpa` or `eager`.
    `flash_attention_2` needs flash-attn."""
    fused_loss: bool = False
    """Compute output layer and loss in pieces, to save memory. For ZeRO 0 to 2, and models that end with the output
    layer."""
    sequence_parallel: Positive = 1
    """Number of ranks that [share each sample](training.md#sequence-parallelism)."""
    tensor_parallel: Positive = 1
    """Number of ranks that [share each layer](training.md#tensor-parallelism)."""
    log_every: Positive = 1
    """Steps between metric lines."""
    untimed_steps: Positive = WARM_UP_STEPS
    """First steps of an attempt that count in no figure of speed, memory or power; at most half."""
    profile_at: Positive | None = None
    """First of three steps to [profile](training.md#measured-figures)."""

    @property
    def searches(self) -> bool:
        """Whether each configuration searches for its micro-batch."""
        return self.micro_batch == AUTO

    @property
    def ranks_per_sample(self) -> int:
        """Consecutive ranks that work on the same samples."""
        return self.sequence_parallel * self.tensor_parallel

    def data_parallel(self, world_size: int) -> int:
        """Among how many the global batch is divided: the ranks, or the groups of them that have the same samples."""
        return max(1, world_size // self.ranks_per_sample)

    @property
    def fixed_micro_batch(self) -> int | None:
        """The micro-batch that the spec gives; None for the default, and if it is searched for."""
        return self.micro_batch if isinstance(self.micro_batch, int) else None


class LocalConfig(SpecSection):
    """How runs share this machine with `executor: local`."""

    parallel: Positive = 1
    """Runs at a time."""
    mem_per_process: MemorySize | None = None
    """Address space of a rank on CPUs (`8G`); beyond it the run is out of GPU memory."""
    gpu_mem_per_process: MemorySize | None = None
    """GPU memory of a rank of the built-in trainer (`40G`)."""
    setup: Lines = ()
    """Shell lines to run first. A line that fails ends the attempt."""

    def limit_mb(self, *, gpus: bool) -> int | None:
        """Return the MB that a rank may use of its GPU, or else of address space; None for no limit."""
        limit = self.gpu_mem_per_process if gpus else self.mem_per_process
        return None if limit is None else parse_mem_mb(limit)


class LimitsConfig(SpecSection):
    """Limits of the whole campaign, retries included."""

    gpu_hours: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] | None = None
    """GPU-hours after which no attempt starts; waiting runs are held."""
    running: Positive | None = None
    """Most queued and running attempts."""


class RunConfig(SpecSection):
    """The configuration of a run; a spec adds a matrix."""

    executor: Executor = "slurm"
    """`slurm`, or `local` for processes on this machine."""
    slurm: SlurmConfig = SlurmConfig()
    """Resources of an attempt."""
    local: LocalConfig = LocalConfig()
    """Sharing of this machine."""
    train: TrainConfig = TrainConfig()
    """The experiment."""
    ranks_per_node: Positive | None = None
    """Processes per node. Default: its number of GPUs, or 1; with `launcher: python` 1."""
    launcher: Launcher | None = None
    """[Launcher](own-scripts.md#launchers) of a `command`: `deepspeed`, `torchrun`, `accelerate`, `srun` or `python`.
    Default: as in `command`, or deepspeed."""
    launcher_options: tuple[Word, ...] = ()
    """Its options (`[--mixed_precision, bf16]`). Default: as in `command`."""
    command: tuple[Word, ...] | None = None
    """[Your own script](own-scripts.md) with [placeholders](own-scripts.md#placeholders): `train.py --depth {depth}`,
    `-m package.module`, `torchrun train.py`; `--local_rank={local_rank}` if it does not read LOCAL_RANK."""
    code: Literal["copy", "live"] = "copy"
    """`copy`: attempts run from [a copy of the code](cluster.md#code). `live`: from the files as they are."""
    python: Name | None = None
    """Python that runs the training, or the folder of its environment; as an axis it [compares
    versions](is-it-slower.md). Default: the Python of `setup`, else of this program; in a container, `python3`."""
    container: ContainerConfig | None = None
    """Image in which the training runs."""
    env: dict[Variable, EnvText] = Field(default={})
    """Environment variables; no secrets: the store keeps them."""
    deepspeed: DeepSpeedSection = Field(default={})
    """DeepSpeed's own fields, merged over the configuration from `train`."""
    retry: RetryConfig = RetryConfig()
    """How often to retry a run."""
    prune: PruneConfig = PruneConfig()
    """When to end a run that cannot win."""
    telemetry_s: Real = Field(default=1.0, ge=0)
    """Seconds between samples of GPUs; 0 disables sampling."""
    metrics: Metrics = Field(default={})
    """Regular expressions for metrics of an [unchanged script](own-scripts.md#an-unchanged-script), and for `step`."""
    forward: Forward = ForwardConfig()
    """[Other tools](tools.md#forwarding) that get the metrics: `wandb`, `tensorboard`, `mlflow`."""

    @model_validator(mode="before")
    @classmethod
    def _launched(cls, data: Any) -> Any:
        """Take a command apart that starts with a launcher."""
        return taken_apart(data) if isinstance(data, Mapping) and data.get("command") is not None else data

    @field_validator("command", mode="before", json_schema_input_type=str | tuple[Word, ...] | None)
    @classmethod
    def _wrong(cls, value: Any) -> Any:
        if isinstance(value, Hint):
            raise value
        return value

    @property
    def nodes(self) -> int:
        """Nodes per run."""
        return 1 if self.executor == "local" else self.slurm.nodes

    def ranks(self, local_gpus: int = 0) -> int:
        """Processes per node; `local_gpus` of this machine count for `executor: local`."""
        gpus = local_gpus if self.executor == "local" else self.slurm.gpus
        return self.ranks_per_node or (gpus if self.launcher != "python" else 0) or 1

    def world_size(self, local_gpus: int = 0) -> int:
        """Processes of a run; arguments as `ranks`."""
        return self.nodes * self.ranks(local_gpus)

    def rendered_deepspeed(self) -> dict[str, Any]:
        """The DeepSpeed configuration that the run would get, but for the sizes of batches."""
        return render(self.train.model_dump(), micro_batch=1, accumulation=1, world_size=1, overrides=self.deepspeed)

    def train_json(self, *, micro_batch: int | None, accumulation: int | None, world_size: int) -> dict[str, Any]:
        """The content of train.json for an attempt with this micro-batch and accumulation."""
        sizes = {"micro_batch": micro_batch, "accumulation": accumulation, "world_size": world_size}
        return self.train.model_dump(mode="json", exclude={"strategy"}) | sizes


class StageConfig(SpecSection):
    """A [script](own-scripts.md#follow-ups) that follows each completed run, as its own job."""

    command: Annotated[tuple[Word, ...], BeforeValidator(words_of, json_schema_input_type=str | tuple[str, ...])]
    """The script with the run's [placeholders](own-scripts.md#placeholders), and `{checkpoint}`: the newest checkpoint
    of the run, else its folder."""
    ranks_per_node: Positive = 1
    """Processes per node. `python` starts them unless `command` names a launcher."""
    slurm: dict[str, Any] = Field(default={})
    """Fields of `slurm` that differ from the run's: `{gpus_per_node: 1, time: 10}`."""


NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
STAGE_NAME: Final = r"^[a-z][a-z0-9_]{0,19}$"


class Spec(RunConfig):
    """A campaign: one configuration, and the matrix of its variations."""

    name: Annotated[str, Field(pattern=NAME)]
    """At most 64 letters, digits, `.`, `_` and `-`; not a name in `dir` (`data`)."""
    dir: Line = "./campaign"
    """Shared folder for checkpoints, logs and data."""
    workdir: Name | None = None
    """Start folder of `setup` and training. Default: the spec's folder."""
    store: Line | None = None
    """`postgresql://user@host/name` or `sqlite:///path`. Default: a file in `dir`."""
    matrix: dict[str, Any] = Field(default={})
    """[Axes](#the-matrix) with their values, `include`, `exclude`."""
    repeats: Positive = 1
    """Runs per point, each with its own seed."""
    objective: Objective | None = None
    """[Objective](results.md#objectives) of the recommendation: `speed`, `loss`, `memory`, `energy` or `time-to-loss`.
    Default: speed, unless an axis changes the loss."""
    loss_margin: Annotated[Real, Field(gt=0)] | None = None
    """[Margin](results.md#conclusions) within which losses are equal. Default: 0.01 nats; of a script's own loss 0.3 %
    of the baseline's."""
    baseline: Annotated[
        dict[str, Scalar | None], AfterValidator(lambda axes: {key.rpartition(".")[2]: axes[key] for key in axes})
    ] = Field(default={})
    """Condition to compare with, as `{zero_stage: 0}` ([default](results.md#comparisons))."""
    search: SearchConfig | None = None
    """[Search](search.md) instead of a matrix."""
    then: dict[Annotated[str, Field(pattern=STAGE_NAME)], StageConfig] = Field(default={})
    """Follow-ups of each completed run, by name: `{eval: {command: ...}}`."""
    retention: RetentionConfig | None = None
    """Thinning of old metrics."""
    reconciler: ReconcilerConfig = ReconcilerConfig()
    """The job that retries."""
    notify: NotifyConfig | None = None
    """Messages about the campaign."""
    limits: LimitsConfig = LimitsConfig()
    """Limits of the campaign."""
    max_runs: Annotated[Whole, Field(ge=1, le=100_000)] = 1000
    """Most runs in the matrix."""

    @field_validator("name")
    @classmethod
    def _collides_with_nothing(cls, value: str) -> str:
        if value in tuple(Beside) or value.startswith((f"{Beside.STORE}-", f"{Beside.STORE}.")):
            free = f"{value.partition('.')[0]}-1"
            raise Hint(f"{value} is the name of something else in `dir`", f"choose another, such as {free}")
        return value
