"""The fields of a spec. Every field's docstring is its documentation, see docs/spec.md."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, Strict, field_validator

from ...jobs.shared.ds_config import render
from .forward_section import Forward, ForwardConfig
from .slurm_section import Hint, MemorySize, Section, SlurmConfig, Text, one_line, parse_mem_mb

Real = Annotated[float, Strict(), Field(allow_inf_nan=False)]
"""A finite number, never text."""

Positive = Annotated[int, Strict(), Field(ge=1)]
"""A whole number from 1."""

Count = Annotated[int, Strict(), Field(ge=0)]
"""A whole number from 0."""

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
]
Executor = Literal["slurm", "local"]
ConfigChange = Literal["activation_checkpointing", "offload_optimizer", "zero_stage"]

_SECRET: Final = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|(?:API|ACCESS|PRIVATE)_?KEY|APIKEY)(?:_|$)",
    re.IGNORECASE,
)
"""Names of environment variables whose values nobody else should read."""

_SECRET_VALUE: Final = re.compile(
    r"^(?:hf_|sk-|gh[opsu]_|github_pat_|xox[abp]-|AKIA)[\w-]{12,}$|://[^/\s:@]*:[^/\s@]+@"
)
"""The forms of well-known tokens, and an address with a password."""

DESCRIBES_ONLY: Final = frozenset(
    {
        *("checkpoint_every", "keep_checkpoints", "keep_best", "universal_checkpoint"),
        *("eval_every", "eval_batches", "log_every", "profile_at"),
    }
)
"""Fields of `train` that watch or save a run and do not change what it learns."""

MIN_TELEMETRY_S: Final = 0.1


class DatasetConfig(Section):
    """Text to train on. `dataset: wikitext` is short for `dataset: {path: wikitext}`."""

    path: str
    """Name on the Hugging Face hub, or a local text, jsonl or parquet file, or a folder of them."""
    name: str | None = None
    """Configuration of a hub data set, such as `wikitext-103-raw-v1`."""
    split: str | None = None
    """Split to train on. Default: `train`."""
    text_field: str = "text"
    """Field that holds the text."""
    eval_path: str | None = None
    """Held-out text in a file or folder of its own."""
    eval_split: str | None = None
    """Split that is held out."""
    eval_fraction: Real = Field(default=0.05, ge=0, lt=1)
    """Part of the end of the text that is held out where neither eval_path nor eval_split is given."""


class TrainConfig(Section):
    """The experiment. Built-in training takes all fields; with `command` they reach the script by environment."""

    model: str | dict[str, Any] | None = None
    """Causal language model: a name such as `gpt2` or `meta-llama/Llama-2-7b-hf`, a folder, or a configuration such as
    `{model_type: gpt2, n_layer: 2}`. With random weights, a name that docs/models.md lists needs no hub."""
    pretrained: bool = False
    """Start from the model's published weights instead of random ones."""
    tokenizer: str | None = None
    """Hub name or folder of a tokenizer, or `bytes` for one token a byte. Default: the model's own."""
    dataset: Annotated[
        DatasetConfig | None, BeforeValidator(lambda value: {"path": value} if isinstance(value, str) else value)
    ] = None
    """Text to train on: a hub name or path, or the fields below."""
    seq_len: Positive = 1024
    """Tokens of one sample."""
    global_batch: Positive | None = None
    """Samples of one optimizer step over all ranks: global_batch = micro_batch x accumulation x ranks."""
    micro_batch: Positive | None = None
    """Samples of one forward pass on one rank. Default: the largest divisor of a rank's share that is at most 8.
    It is made smaller, with more accumulation, when memory runs out."""
    steps: Positive | None = None
    """Optimizer steps; either this or epochs."""
    epochs: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] | None = None
    """Passes over the text; either this or steps."""
    precision: Precision = "bf16"
    """Number format of the training: fp32, tf32 (fp32 whose matrix products are rounded to 10 bits, on the matrix
    units), bf16, or fp16 (with dynamic loss scaling)."""
    strategy: Strategy | None = None
    """One word for engine, zero_stage and offload: `ddp`, `zero0` to `zero3`, `zero1-offload` to `zero3-offload`
    (optimizer on the CPU), `zero3-offload-full` (parameters too), `zero-infinity` (both on a disk, see nvme_path)."""
    engine: Literal["deepspeed", "ddp"] = "deepspeed"
    """`ddp` is PyTorch's own data parallel training without DeepSpeed's engine: the baseline."""
    zero_stage: Annotated[int, Strict(), Field(ge=0, le=3)] = 0
    """ZeRO stage: 0 keeps everything on every rank; 1 shards optimizer states, 2 also gradients, 3 also parameters."""
    offload: Literal["none", "optimizer", "full", "nvme"] = "none"
    """What is kept out of the GPU's memory: `optimizer` its states, in the node's memory (ZeRO 1 to 3); `full`
    parameters too (ZeRO 3); `nvme` both, on the disk at nvme_path (ZeRO 3)."""
    nvme_path: str | None = None
    """Folder on a fast local disk of each node, for `offload: nvme`. DeepSpeed needs libaio there."""
    lr: Real = Field(default=3e-4, gt=0)
    """Highest learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """How the learning rate falls after the warm-up."""
    warmup_steps: Count = 0
    """Steps over which the learning rate rises from 0."""
    min_lr_ratio: Real = Field(default=0.1, ge=0, le=1)
    """Where the learning rate falls to, as a part of the highest one: the step after the last would have it."""
    weight_decay: Real = Field(default=0.1, ge=0)
    """AdamW's weight decay."""
    beta1: Real = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay of the gradient's mean."""
    beta2: Real = Field(default=0.95, ge=0, lt=1)
    """AdamW's decay of the squared gradient's mean."""
    eps: Real = Field(default=1e-8, gt=0)
    """AdamW's epsilon."""
    grad_clip: Real = Field(default=1.0, ge=0)
    """Gradients are scaled down to this norm; 0 leaves them as they are."""
    seed: Count = 42
    """Seed of the initial weights and of the order of the samples. Repeat number r uses seed + r."""
    dropout: Real = Field(default=0.0, ge=0, lt=1)
    """Dropout of the model."""
    checkpoint_every: Positive | None = None
    """Steps between checkpoints. Default: none, so an interrupted run starts again from step 0."""
    keep_checkpoints: Positive = 2
    """Checkpoints that are kept, newest first."""
    keep_best: bool = False
    """Keep beside these the checkpoint with the lowest loss on held-out text, which its manifest.json says as
    eval_loss. Only a checkpoint at whose step there is an evaluation can be the best: give eval_every and
    checkpoint_every, and make one a multiple of the other; the last step has both. An interrupted run resumes from
    the newest, not from the best."""
    universal_checkpoint: bool = False
    """Let the run resume on another number of nodes or ranks: its checkpoint is then converted first, with DeepSpeed's
    own tool, which for a while takes three times its room. Say so before the run begins: its nodes and ranks then are
    no part of the experiment, unless the matrix varies them. For the built-in training."""
    eval_every: Positive | None = None
    """Steps between evaluations on held-out text. Default: only at the end."""
    eval_batches: Positive | None = None
    """Batches of one evaluation, at most. Default: all held-out text."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, about a third slower."""
    compile: bool = False
    """Use torch.compile. With ZeRO 0 to 2 the parameters then lie in two tensors, and DeepSpeed's cost for each of
    them falls away."""
    deepcompile: bool = False
    """Use DeepSpeed's compiler passes (DeepCompile), on GPUs with ZeRO 1 to 3; it includes `compile`."""
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    """Implementation of attention. `auto`: PyTorch's without a mask tensor where the model's attention is plain, and
    so on its fastest kernels; else `sdpa`. `flash_attention_2` needs the package flash-attn."""
    fused_loss: bool = False
    """Compute output layer and cross-entropy together, 8,192 tokens at a time: the logits never lie in memory as a
    whole. For ZeRO 0 to 2 and models without anything behind the output layer."""
    log_every: Positive = 1
    """Steps between metric lines."""
    profile_at: Positive | None = None
    """Profile three steps from this one on, on the first rank, with PyTorch's profiler: a trace and a table of its
    operators lie in the attempt's folder `profile`. They are slower, and have no times in metrics and reports."""


class LocalConfig(Section):
    """How runs share this machine when `executor: local`."""

    parallel: Positive = 1
    """Runs at the same time."""
    mem_per_process: MemorySize | None = None
    """Address space that one rank may use, such as `8G`: a run on CPUs that asks for more fails like an
    out-of-memory on a GPU. It has no effect where ranks use GPUs."""
    gpu_mem_per_process: MemorySize | None = None
    """Memory of its GPU that one rank of the built-in training may use, such as `40G`, as if the GPU were smaller."""
    setup: tuple[Text, ...] = ()
    """Shell lines that run before the training, on this machine."""

    def limit_mb(self, *, gpus: bool) -> int | None:
        """What one rank may use, in MB: of its GPU, or else of address space; None for no limit."""
        limit = self.gpu_mem_per_process if gpus else self.mem_per_process
        return None if limit is None else parse_mem_mb(limit)


class RetryRule(Section):
    """What you know of your own training's errors; it comes before what this program knows."""

    match: Text
    """Regular expression, looked for in every rank's error and in each line of the logs."""
    action: Literal["stop", "retry", "exclude_node", "smaller"]
    """`stop`: failed, no further try. `retry`: again, counts as a crash. `exclude_node`: again, on other nodes, counts
    as infra. `smaller`: an out-of-memory, tried at a smaller micro-batch."""
    hint: str = ""
    """What to do about it, shown with the failure."""

    @field_validator("match")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            compiled = re.compile(value)
            everything = compiled.search("") or (compiled.search("x") and compiled.search("0"))
        except re.error as error:
            raise Hint(f"is no regular expression: {error}", "write \\( for a parenthesis, \\. for a dot") from error
        if everything:
            raise Hint("matches nearly every line", "name the words that your error always has")
        return value


class RetryConfig(Section):
    """How often a run is tried again, by what went wrong. A preemption or a time limit counts against nothing."""

    crash: Count = 3
    """Failures of the training itself, and failures that nothing explains."""
    infra: Count = 8
    """Failures of nodes, GPUs, network or storage."""
    oom: Count = 4
    """Times that the micro-batch may be made smaller."""
    host_oom: Count = 2
    """Times that the node's own memory may be raised."""
    backoff_s: Count = 30
    """Seconds before the second try; doubled for every further one."""
    max_backoff_s: Count = 1800
    """Seconds before a try, at most."""
    allow: tuple[ConfigChange, ...] = ()
    """What may be changed when memory runs out at micro-batch 1, one after another: activation_checkpointing,
    offload_optimizer, zero_stage (one higher each time). It changes what you measure, and every table marks it."""
    exclude_h: Real = Field(default=24.0, ge=0)
    """Hours that a node which proved bad is not used; 0 never excludes one."""
    hang_factor: Real = Field(default=20.0, ge=0)
    """A run that makes no step for this many times the 99th percentile of its own step time is ended and resumed; the
    time of compiling, saving and evaluating does not count. 0 waits for ever."""
    hang_min_s: Count = 600
    """Seconds without a step, at least, before a run is taken to hang."""
    rules: tuple[RetryRule, ...] = ()
    """Errors of your own training and what they mean, the first that matches counts."""


class LimitsConfig(Section):
    """What the campaign may use, all its runs and their retries together."""

    gpu_hours: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] | None = None
    """GPU-hours after which no further attempt is started; what runs goes on, what waits is held. Default: no limit."""
    running: Positive | None = None
    """Attempts that may be queued or running at the same time. Default: all of them, Slurm has a queue."""


class RunConfig(Section):
    """Everything that one run needs; a spec is this and a matrix."""

    executor: Executor = "slurm"
    """`slurm`, or `local` for processes on this machine."""
    slurm: SlurmConfig = SlurmConfig()
    """What an attempt asks Slurm for."""
    local: LocalConfig = LocalConfig()
    """How runs share this machine when `executor: local`."""
    train: TrainConfig = TrainConfig()
    """The experiment."""
    command: tuple[str, ...] | None = None
    """Your own training script and its arguments instead of the built-in training: `train.py --depth {depth}`, or
    `-m package.module`. `{name}` stands for a matrix parameter or a field of train; `--local_rank={local_rank}` is
    for scripts that want the argument which the launcher would add, others read LOCAL_RANK."""
    python: str | None = None
    """Python that runs the training, such as `/envs/train/bin/python`. Default: the one that runs this program."""
    env: dict[str, str] = Field(default={})
    """Environment variables of the training. They are kept in the store: no place for secrets."""
    ranks_per_node: Positive | None = None
    """Processes on one node. Default: its GPUs, or 1."""
    deepspeed: dict[str, Any] = Field(default={})
    """DeepSpeed configuration that is merged over the one that is made from `train`."""
    retry: RetryConfig = RetryConfig()
    """How often a run is tried again."""
    telemetry_s: Real = Field(default=1.0, ge=0)
    """Seconds between two looks at the GPUs of a run, from 0.1: their power, energy, use, temperature, clocks; 0 for
    none. Every node's agent looks, not the training. After every 3600 looks of an attempt the time doubles. It is no
    part of the experiment."""
    forward: Forward = ForwardConfig()
    """Tools that get the metrics too, while the run goes on: any of `wandb`, `tensorboard`, `mlflow`, as a list or as a
    mapping with their options. [What they get, and what happens when one fails](tools.md)."""

    @field_validator("telemetry_s")
    @classmethod
    def _not_too_often(cls, value: float) -> float:
        """The counters themselves change about ten times a second."""
        if 0 < value < MIN_TELEMETRY_S:
            raise Hint(f"is below {MIN_TELEMETRY_S} s", "write 0 for no telemetry")
        return value

    @field_validator("command", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        """A command in one line of text is split as a shell does."""
        try:
            words = shlex.split(value) if isinstance(value, str) else value
        except ValueError as error:
            raise Hint(f"does not split into words: {error}", "write a list of words") from error
        if not isinstance(words, list | tuple) or not words:
            raise Hint("names no script", "write the script and its arguments")
        if re.fullmatch(r"(.*/)?(python[\d.]*|deepspeed|torchrun)", str(words[0])):
            raise Hint(f"starts with {words[0]}", "start with the script, which deepspeed launches; see also `python`")
        return [str(word) for word in words]

    @field_validator("env", mode="before")
    @classmethod
    def _env_text(cls, value: Any) -> Any:
        """Numbers and true/false may stand in `env` without quotes."""
        if not isinstance(value, dict):
            return value
        for name, text in value.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)):
                raise Hint(f"{name!r} is no name of an environment variable", "use letters, digits and underscores")
            if isinstance(text, str) and text and (_SECRET.search(str(name)) or _SECRET_VALUE.search(text)):
                hint = "leave it out and export it in your shell: jobs inherit your environment"
                raise Hint(f"{name} looks like a secret, and a spec is kept in the store", hint)
            if str(name).startswith("CAMPAIGN_"):
                raise Hint(f"{name} is set by this program", "choose a name that does not start with CAMPAIGN_")
            one_line(text)
        return {name: env_text(text) if isinstance(text, int | float) else text for name, text in value.items()}

    @property
    def nodes(self) -> int:
        """Nodes of one run."""
        return 1 if self.executor == "local" else self.slurm.nodes

    def ranks(self, local_gpus: int = 0) -> int:
        """Processes on one node.

        Args:
            local_gpus: GPUs of this machine, for `executor: local`.
        """
        gpus = local_gpus if self.executor == "local" else self.slurm.gpus
        return self.ranks_per_node or gpus or 1

    def world_size(self, local_gpus: int = 0) -> int:
        """Processes of one run; arguments as `ranks`."""
        return self.nodes * self.ranks(local_gpus)

    def rendered_deepspeed(self) -> dict[str, Any]:
        """The DeepSpeed configuration that the run would get, but for the sizes of batches."""
        return render(self.train.model_dump(), micro_batch=1, accumulation=1, world_size=1, overrides=self.deepspeed)

    def train_json(self, *, micro_batch: int | None, accumulation: int | None, world_size: int) -> dict[str, Any]:
        """The content of train.json for an attempt with this micro-batch and accumulation."""
        sizes = {"micro_batch": micro_batch, "accumulation": accumulation, "world_size": world_size}
        return self.train.model_dump(mode="json", exclude={"strategy"}) | sizes


class Spec(RunConfig):
    """A campaign: one configuration, and the matrix of what varies."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """Name of the campaign: letters, digits, `.`, `_` and `-`, at most 64."""
    dir: str = "./campaign"
    """Folder that every node sees, for checkpoints, logs and data; relative to where `campaign` runs."""
    store: str | None = None
    """Database of runs and metrics, `postgresql://user@host/name` or `sqlite:///path`. Default: a file in `dir`."""
    matrix: dict[str, Any] = Field(default={})
    """What varies: axes with their values, `include` and `exclude`, see below."""
    repeats: Positive = 1
    """Runs of every point of the matrix, each with its own seed."""
    limits: LimitsConfig = LimitsConfig()
    """What the campaign may use."""
    max_runs: Positive = 1000
    """A matrix that expands to more runs is refused."""


def env_text(value: object) -> str:
    """A value as a shell or a script reads it: `true`, not `True`."""
    return str(value).lower() if isinstance(value, bool) else str(value)
