"""The trainer's configuration: the run's ``train.json`` and the environment of its rank."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from dscampaign.db.records import WARM_UP_STEPS
from dscampaign.jobs.shared.documents import EXACT, decode


@dataclass(frozen=True)
class TrainerDataset:
    """The source of the text; fields as in the spec's `train.dataset`."""

    __pydantic_config__: ClassVar = EXACT

    path: str
    name: str | None
    split: str | None
    text_field: str
    eval_path: str | None
    eval_split: str | None
    eval_fraction: float
    packing: bool = True
    max_tokens: int | None = None


@dataclass(frozen=True)
class SearchPlan:
    """A search for the micro-batch instead of a training."""

    __pydantic_config__: ClassVar = EXACT
    share: int  # samples of a rank in an optimizer step of the run
    seconds: float  # limit for trying larger sizes
    too_big: int | None = None  # a size that did not fit before


@dataclass(frozen=True)
class TrainerConfig:
    """The training of an attempt, with the fields of ``train.json``, which names all of them; as in the spec's `train`.

    Only a field that is new in a version has a default here, for attempts that the version before has queued. In
    samples, ``global_batch = micro * accumulation * world_size / (sequence_parallel * tensor_parallel)``.
    """

    __pydantic_config__: ClassVar = EXACT

    model: str | Mapping[str, Any]
    dataset: TrainerDataset
    global_batch: int
    micro_batch: int
    accumulation: int
    world_size: int
    pretrained: bool
    tokenizer: str | None
    seq_len: int
    steps: int | None
    epochs: float | None
    precision: Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
    zero_stage: int
    lr: float
    schedule: Literal["constant", "linear", "cosine"]
    warmup_steps: int
    min_lr_ratio: float
    weight_decay: float
    beta1: float
    beta2: float
    eps: float
    grad_clip: float
    seed: int
    dropout: float
    checkpoint_every: int | None
    keep_checkpoints: int
    eval_every: int | None
    eval_batches: int | None
    activation_checkpointing: bool
    compile: bool
    log_every: int
    keep_best: bool = False
    schedule_steps: int | None = None
    engine: Literal["deepspeed", "ddp", "fsdp2"] = "deepspeed"
    offload: Literal["none", "optimizer", "full", "nvme"] = "none"
    fsdp2_reduce: Literal["each", "last"] = "each"
    nvme_path: str | None = None
    deepcompile: bool = False
    deepspeed_patches: bool = True
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    fused_loss: bool = False
    profile_at: int | None = None
    untimed_steps: int = WARM_UP_STEPS
    sequence_parallel: int = 1
    tensor_parallel: int = 1
    search: SearchPlan | None = None

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read ``train.json``. Raises ValueError: it is of another version, or its batch arithmetic does not hold."""
        config = decode(cls, json.loads(text))
        at_once = config.micro_batch * config.accumulation * config.world_size
        if config.global_batch * config.ranks_per_sample != at_once:
            raise ValueError("train.json: global_batch is not micro_batch * accumulation * world_size / ranks a sample")
        if config.seq_len % config.sequence_parallel:
            raise ValueError("train.json: seq_len is not a multiple of sequence_parallel")
        return config

    @property
    def ranks_per_sample(self) -> int:
        """Consecutive ranks that work on the same samples."""
        return self.sequence_parallel * self.tensor_parallel

    @property
    def part_len(self) -> int:
        """Return the tokens of a sample on each rank."""
        return self.seq_len // self.sequence_parallel


@dataclass(frozen=True)
class Job:
    """This rank's place in the attempt, from the environment; None for no checkpoint and no limit of memory."""

    rank: int
    local_rank: int
    world_size: int
    local_world: int
    generation: int
    config_hash: str
    train_config: Path
    ds_config: Path
    data_dir: Path
    checkpoint_dir: Path
    attempt_dir: Path
    resume: Path | None = None
    gpu_mem_bytes: int | None = None

    @classmethod
    def from_environment(cls, env: Mapping[str, str] = os.environ) -> Self:
        """Read the launcher's and the campaign's variables. Raises KeyError: a variable is missing."""
        return cls(
            rank=int(env["RANK"]),
            local_rank=int(env["LOCAL_RANK"]),
            world_size=int(env["WORLD_SIZE"]),
            local_world=int(env.get("LOCAL_SIZE", "1")),
            generation=int(env["CAMPAIGN_GENERATION"]),
            config_hash=env["CAMPAIGN_CONFIG_HASH"],
            train_config=Path(env["CAMPAIGN_TRAIN_CONFIG"]),
            ds_config=Path(env["CAMPAIGN_DS_CONFIG"]),
            data_dir=Path(env["CAMPAIGN_DATA_DIR"]),
            checkpoint_dir=Path(env["CAMPAIGN_CHECKPOINT_DIR"]),
            attempt_dir=Path(env["CAMPAIGN_ATTEMPT_DIR"]),
            resume=Path(env["CAMPAIGN_RESUME"]) if env.get("CAMPAIGN_RESUME") else None,
            gpu_mem_bytes=int(env["CAMPAIGN_GPU_MEM_PER_PROCESS"]) if "CAMPAIGN_GPU_MEM_PER_PROCESS" in env else None,
        )
