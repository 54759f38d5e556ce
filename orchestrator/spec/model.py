"""The fields of a spec. Every field's docstring is its documentation, see docs/spec.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Strict, ValidationInfo, field_validator, model_validator

from dscampaign.db.records import WARM_UP_STEPS
from dscampaign.jobs.shared.ds_config import render
from dscampaign.jobs.shared.layout import is_reserved

from .command_line import Word, taken_apart, words_of
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
    name_of_input,
)
from .launch_line import Launcher
from .objective import Objective
from .sections import (
    ContainerConfig,
    DeepSpeedSection,
    Forward,
    ForwardConfig,
    Metrics,
    PruneConfig,
    RetentionConfig,
    RetryConfig,
    ScreenConfig,
)
from .slurm_section import MemorySize, SlurmConfig, parse_mem_mb

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Strategy = Literal[
    "ddp",
    "zero0",
    "zero1",
    "zero2",
    "zero3",
    "zero1-offload",
    "zero2-offload",
    "zero3-offload",
    "zero3-offload-full",
    "zero-infinity",
    "fsdp2",
    "fsdp2-offload",
]
Executor = Literal["slurm", "local"]

MIN_TELEMETRY_S: Final = 0.1

AUTO: Final = "auto"
"""The micro-batch that is searched for."""


class DatasetConfig(SpecSection):
    """Text to train on. `dataset: wikitext` is short for `dataset: {path: wikitext}`."""

    path: Name
    """Name on the Hugging Face hub, or a local text, jsonl or parquet file, or a folder of them."""
    name: Name | None = None
    """Configuration of a hub data set, such as `wikitext-103-raw-v1`."""
    split: Name | None = None
    """Split to train on: of a folder, the files whose path in it begins so. Default: `train`; all files of a folder
    without `eval_split`."""
    text_field: str = "text"
    """Field that holds the text."""
    eval_path: Name | None = None
    """Held-out text in a separate file or folder."""
    eval_split: Name | None = None
    """Held-out split, likewise."""
    eval_fraction: Real = Field(default=0.05, ge=0, lt=1)
    """Share of the text, at its end, that is held out if neither eval_path nor eval_split is given."""


class TrainConfig(SpecSection):
    """The experiment. The built-in training uses all fields; a `command` gets them as environment variables."""

    model: Annotated[str | dict[str, Any] | None, AfterValidator(name_of_input)] = None
    """Causal language model: a name such as `gpt2` or `meta-llama/Llama-2-7b-hf`, a folder, or a configuration such as
    `{model_type: gpt2, n_layer: 2}`. With random weights, the names in docs/models.md need no hub access."""
    pretrained: bool = False
    """Start from the model's published weights instead of random ones."""
    tokenizer: Name | None = None
    """Hub name or folder of a tokenizer, or `bytes` for one token per byte. Default: the model's own."""
    dataset: Annotated[
        DatasetConfig | None, BeforeValidator(lambda value: {"path": value} if isinstance(value, str) else value)
    ] = None
    """Text to train on: a hub name or path, or the fields below."""
    seq_len: Positive = 1024
    """Tokens per sample."""
    global_batch: Positive | None = None
    """Samples per optimizer step over all ranks: global_batch = micro_batch x accumulation x ranks, or groups of ranks
    that have the same samples (sequence_parallel, tensor_parallel)."""
    micro_batch: Positive | Literal["auto"] | None = None
    """Samples per forward pass on one rank, or on one group of ranks that have the same samples. Default: the largest
    divisor of its share that is at most 8. `auto` searches for the fastest that fits before the training begins, once
    for all repeats ([how](training.md#the-fastest-micro-batch)). Out-of-memory errors reduce it and increase
    accumulation."""
    steps: Positive | None = None
    """Optimizer steps; either this or epochs."""
    epochs: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] | None = None
    """Passes over the text; either this or steps."""
    precision: Precision = "bf16"
    """Number format: fp32, tf32 (fp32 with matrix products on the tensor cores, rounded to 10 bits of mantissa), bf16,
    or fp16 (with dynamic loss scaling)."""
    strategy: Strategy | None = None
    """Name for engine, zero_stage and offload: `ddp`, `zero0` to `zero3`, `zero1-offload` to `zero3-offload`
    (optimizer on the CPU), `zero3-offload-full` (parameters too), `zero-infinity` (both on a disk, see nvme_path);
    `fsdp2` and `fsdp2-offload` for engine fsdp2, with all states in host memory."""
    engine: Literal["deepspeed", "ddp", "fsdp2"] = "deepspeed"
    """`ddp` is PyTorch's DistributedDataParallel without DeepSpeed's engine: the baseline. `fsdp2` is
    PyTorch's `fully_shard`, which shards as ZeRO 3 does. Leave zero_stage out with both."""
    zero_stage: Annotated[Whole, Field(ge=0, le=3)] = 0
    """ZeRO stage: 0 keeps everything on every rank; 1 shards optimizer states, 2 also gradients, 3 also parameters."""
    offload: Literal["none", "optimizer", "full", "nvme"] = "none"
    """States to offload from GPU memory: `optimizer` the optimizer states to host memory (ZeRO 1 to 3); `full` the
    parameters too (ZeRO 3); `nvme` both to the disk at nvme_path (ZeRO 3)."""
    fsdp2_reduce: Literal["each", "last"] = "each"
    """When engine fsdp2 reduces gradients: after `each` micro-batch, as ZeRO 3 does, or after the `last` of a step,
    which communicates less but keeps whole fp32 gradients on every rank."""
    nvme_path: Line | None = None
    """Folder on a fast local disk of each node, by its absolute path, for `offload: nvme`. DeepSpeed needs libaio
    there."""
    lr: Real = Field(default=3e-4, gt=0)
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """Decay of the learning rate after warm-up."""
    warmup_steps: Count = 0
    """Steps of linear warm-up from 0."""
    min_lr_ratio: Real = Field(default=0.1, ge=0, le=1)
    """Final learning rate as a share of the peak, reached one step after the last."""
    weight_decay: Real = Field(default=0.1, ge=0)
    """AdamW's weight decay."""
    beta1: Real = Field(default=0.9, ge=0, lt=1)
    """AdamW's beta1."""
    beta2: Real = Field(default=0.95, ge=0, lt=1)
    """AdamW's beta2."""
    eps: Real = Field(default=1e-8, gt=0)
    """AdamW's epsilon."""
    grad_clip: Real = Field(default=1.0, ge=0)
    """Clip gradients to this norm; 0 disables clipping."""
    seed: Annotated[Whole, Field(ge=0, le=2**63 - 1)] = 42
    """Seed of the initial weights and of the order of the samples. Repeat number r uses seed + r."""
    dropout: Real = Field(default=0.0, ge=0, lt=1)
    """Dropout of the model."""
    checkpoint_every: Positive | None = None
    """Steps between checkpoints. Default: none, so an interrupted run restarts from step 0."""
    keep_checkpoints: Positive = 2
    """Number of newest checkpoints to keep."""
    keep_best: bool = False
    """Also keep the checkpoint with the lowest loss on held-out text, `eval_loss` in its manifest.json. Only a
    checkpoint whose step was evaluated can be the best: set eval_every and checkpoint_every, one a multiple of the
    other; the last step always has both. An interrupted run resumes from the newest checkpoint, not from the best."""
    eval_every: Positive | None = None
    """Steps between evaluations on held-out text. Default: only at the end."""
    eval_batches: Positive | None = None
    """Maximum number of batches per evaluation. Default: all held-out text."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third slower."""
    compile: bool = False
    """Use torch.compile. With ZeRO 0 to 2 and whole layers, also keeps the parameters in two flat tensors, which avoids
    DeepSpeed's overhead per parameter."""
    deepcompile: bool = False
    """Use DeepSpeed's compiler passes (DeepCompile), on GPUs with ZeRO 1 to 3; implies `compile`."""
    deepspeed_patches: bool = True
    """Replace functions of DeepSpeed that make the host wait, and hand it whole blocks and flat parameters
    ([what and why](training.md#deepspeed-as-installed)). `false` trains with DeepSpeed as installed: the same losses,
    usually slower. Built-in training only."""
    cuda_graphs: bool = False
    """Record forward and backward pass once as CUDA graphs and replay them, so that small micro-batches do not wait for
    the host ([when](training.md#what-makes-it-fast)). Needs `compile`, ZeRO 0 to 2 and whole layers, on GPUs. Built-in
    training only."""
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    """Attention implementation. `auto` uses PyTorch's causal attention without a mask tensor, its fastest kernels, if
    the model's attention allows it, else `sdpa`, or `eager` for models that have no other. `flash_attention_2` needs
    the package flash-attn."""
    fused_loss: bool = False
    """Compute output layer and cross-entropy together, 8,192 tokens at a time, so that the full logits are never in
    memory. For ZeRO 0 to 2 and models with nothing after the output layer."""
    sequence_parallel: Positive = 1
    """Number of consecutive ranks that share each sample (DeepSpeed-Ulysses), each with seq_len / sequence_parallel
    tokens of it: for samples whose activations do not fit into one GPU. It must divide the ranks, seq_len and the
    model's attention heads ([how](training.md#sequence-parallelism)). Built-in training only."""
    tensor_parallel: Positive = 1
    """Number of consecutive ranks that share each layer's matrices (DeepSpeed's AutoTP), and work on the same samples:
    for layers or states that do not fit into one GPU. With ZeRO 0 to 2. It must divide the ranks, the model's attention
    heads and its inner width ([how](training.md#tensor-parallelism)). Built-in training only."""
    log_every: Positive = 1
    """Steps between metric lines; the speed in a line is the mean over the steps since the line before."""
    untimed_steps: Positive = WARM_UP_STEPS
    """Steps at the start of each attempt that compile, allocate and fill caches: they count in no figure of speed,
    memory or power. Of an attempt with fewer than twice as many, its first half."""
    profile_at: Positive | None = None
    """Profile three steps from this one on rank 0 with PyTorch's profiler: writes a trace and a table of operators to
    the attempt's folder `profile`. Metrics and reports leave out the times of these steps."""

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
    """How runs share this machine when `executor: local`."""

    parallel: Positive = 1
    """Number of runs at a time."""
    mem_per_process: MemorySize | None = None
    """Limit of one rank's address space, such as `8G`: a run on CPUs that exceeds it fails as if a GPU ran out of
    memory. No effect if ranks use GPUs."""
    gpu_mem_per_process: MemorySize | None = None
    """Limit of the GPU memory of one rank of the built-in training, such as `40G`, as if the GPU were smaller."""
    setup: Lines = ()
    """Shell lines that run before the training, on this machine. A line that fails ends the attempt."""

    def limit_mb(self, *, gpus: bool) -> int | None:
        """Return the MB that a rank may use of its GPU, or else of address space; None for no limit."""
        limit = self.gpu_mem_per_process if gpus else self.mem_per_process
        return None if limit is None else parse_mem_mb(limit)


class LimitsConfig(SpecSection):
    """Limits of the whole campaign, retries included."""

    gpu_hours: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] | None = None
    """GPU-hours after which no attempt starts; running ones continue, waiting runs are held. Default: no limit."""
    running: Positive | None = None
    """Maximum number of queued and running attempts. Default: no limit, as Slurm has a queue."""


class RunConfig(SpecSection):
    """The configuration of a run; a spec adds a matrix."""

    executor: Executor = "slurm"
    """`slurm`, or `local` for processes on this machine."""
    slurm: SlurmConfig = SlurmConfig()
    """The resources that an attempt requests from Slurm."""
    local: LocalConfig = LocalConfig()
    """How runs share this machine when `executor: local`."""
    train: TrainConfig = TrainConfig()
    """The experiment."""
    ranks_per_node: Positive | None = None
    """Processes per node. Default: its number of GPUs, or 1; with `launcher: python` 1. The built-in training has no
    more than that on GPUs."""
    launcher: Launcher | None = None
    """Program that starts the ranks of a `command`: `deepspeed`, `torchrun`, `accelerate`; `srun` for a script that
    reads Slurm's variables, `python` for a single process per node. Default: the launcher with which the command
    starts, or deepspeed ([launchers](own-scripts.md#launchers))."""
    launcher_options: tuple[Word, ...] = ()
    """Options of the launcher, such as `[--mixed_precision, bf16]`. Default: those of the command."""
    command: tuple[Word, ...] | None = None
    """Your own training script and its arguments instead of the built-in training: `train.py --depth {depth}`,
    `-m package.module`, or with its launcher: `torchrun train.py`. `{name}` stands for a matrix parameter, a field of
    train, or a value of the attempt such as `{micro_batch}`; `[--resume {resume_from}]` is left out if the value is
    empty ([placeholders](own-scripts.md#placeholders)). `--local_rank={local_rank}` is for scripts that want the
    argument which the launcher would add, others read LOCAL_RANK."""
    code: Literal["copy", "live"] = "copy"
    """`copy`: a run keeps the code that it began with: the git work tree around the script, or the script's folder, is
    copied once per content, and every attempt runs from its copy
    ([details](cluster.md#the-same-attempt-every-time)). `live`: an attempt runs the files as they are."""
    python: Name | None = None
    """Python that runs the training: `/envs/train/bin/python`, or the folder of its environment; an axis of them
    [compares versions](is-it-slower.md). Default: the one that the lines of `setup` choose, such as
    `source env/bin/activate`, or else the one that runs this program; in a container, `python3`."""
    container: ContainerConfig | None = None
    """Image in which the training runs. Default: none."""
    env: dict[Variable, EnvText] = Field(default={})
    """Environment variables of the training. They are kept in the store, so never put secrets here."""
    deepspeed: DeepSpeedSection = Field(default={})
    """DeepSpeed configuration, merged over the one generated from `train`."""
    retry: RetryConfig = RetryConfig()
    """How often to retry a run."""
    prune: PruneConfig = PruneConfig()
    """When to end a run early that cannot win. Default: never."""
    telemetry_s: Real = Field(default=1.0, ge=0)
    """Seconds between two samples of a run's GPUs, at least 0.1: power, energy, utilization, temperature, clocks; 0
    disables sampling. The node's agent samples, not the training. The interval doubles after every 3600 samples of an
    attempt. Not part of the experiment."""
    metrics: Metrics = Field(default={})
    """Where a `command` that does not call `report` prints its metrics: for each, and for `step`, a regular expression
    with one group, searched in each line of rank 0's output. `step_time_ms` becomes the step time
    ([without changing a script](own-scripts.md)). Not part of the experiment."""
    forward: Forward = ForwardConfig()
    """Tools to forward metrics to while the run trains: any of `wandb`, `tensorboard`, `mlflow`, as a list or as a
    mapping with their options. [Their data, and failures](tools.md)."""

    @field_validator("telemetry_s")
    @classmethod
    def _not_too_often(cls, value: float) -> float:
        if 0 < value < MIN_TELEMETRY_S:
            raise Hint(f"is below {MIN_TELEMETRY_S} s", "write 0 to disable it")
        return value

    @model_validator(mode="before")
    @classmethod
    def _launched(cls, data: Any) -> Any:
        """Take a command apart that starts with a launcher."""
        return taken_apart(data) if isinstance(data, Mapping) and data.get("command") else data

    @field_validator("command", mode="before")
    @classmethod
    def _words(cls, value: Any, info: ValidationInfo) -> Any:
        return words_of(value, info.data)

    @property
    def nodes(self) -> int:
        """Nodes per run."""
        return 1 if self.executor == "local" else self.slurm.nodes

    def ranks(self, local_gpus: int = 0) -> int:
        """Processes per node.

        Args:
            local_gpus: GPUs of this machine, for `executor: local`.
        """
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


def _by_short_names(values: dict[str, Scalar | None]) -> dict[str, Scalar | None]:
    return {name.rpartition(".")[2]: value for name, value in values.items()}


class Spec(RunConfig):
    """A campaign: one configuration, and the matrix of its variations."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """Name of the campaign: letters, digits, `.`, `_` and `-`, at most 64; not that of a file beside it, such as
    `data`."""
    dir: Line = "./campaign"
    """Shared folder for checkpoints, logs and data; relative to the working directory of `campaign`."""
    workdir: Name | None = None
    """Folder in which `setup` and the training start, whoever submits; relative to the spec's folder. Default: that
    folder."""
    store: Line | None = None
    """Database URL, `postgresql://user@host/name` or `sqlite:///path`. Default: a file in `dir`."""
    matrix: dict[str, Any] = Field(default={})
    """Axes and their values, `include` and `exclude`, see below."""
    repeats: Positive = 1
    """Runs per point of the matrix, each with its own seed."""
    objective: Objective | None = None
    """[Objective](results.md#what-counts) of the recommendation, among configurations that learn no worse than the
    baseline: `speed`, `loss`, `memory`, `energy` or `time-to-loss`. Default: speed, unless another learns better."""
    loss_margin: Annotated[Real, Field(gt=0)] | None = None
    """Margin within which two held-out losses count as equal ([details](results.md#what-may-be-concluded)). Default:
    0.01 nats; of a script's own loss 0.3 % of the baseline's."""
    baseline: Annotated[dict[str, Scalar | None], AfterValidator(_by_short_names)] = Field(default={})
    """Axes and their values in the condition that others are compared with, as `{zero_stage: 0}`
    ([default](results.md#what-is-compared))."""
    screen: ScreenConfig | None = None
    """First run each point of the matrix for a few steps, then in full only those that can still win
    ([how](spec.md#screening)). Default: all run in full."""
    retention: RetentionConfig | None = None
    """How much `campaign db prune` leaves of the metrics of runs that ended long ago. Default: all."""
    limits: LimitsConfig = LimitsConfig()
    """Limits of the whole campaign."""
    max_runs: Annotated[Whole, Field(ge=1, le=100_000)] = 1000
    """Upper limit of the number of runs that the matrix expands to."""

    @field_validator("name")
    @classmethod
    def _collides_with_nothing(cls, value: str) -> str:
        if is_reserved(value):
            free = f"{value.partition('.')[0]}-1"
            raise Hint(f"{value} is the name of something else in `dir`", f"choose another, such as {free}")
        return value
