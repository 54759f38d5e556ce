"""What is measured: models and batches, the ways to train them, and what a child process is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

VOCAB_MULTIPLE = 128
"""The vocabulary is padded to it where whoever writes the loop knows that this is faster."""

LEARNING_RATE = 6e-4


@dataclass(frozen=True)
class Model:
    """A GPT-2. Its weights are random, and nothing is fetched."""

    layers: int
    width: int
    heads: int
    vocab: int = 50257
    positions: int = 1024

    @property
    def padded_vocab(self) -> int:
        """Rows of the token table, padded."""
        return -(-self.vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    @property
    def parameters(self) -> int:
        """Weights without padding; the token table is also the output layer, so it counts once."""
        block = 12 * self.width**2 + 13 * self.width
        return (self.vocab + self.positions) * self.width + self.layers * block + 2 * self.width

    def fields(self, vocab: int) -> dict[str, Any]:
        """Fields of its Transformers configuration, without dropout. Args: vocab: rows of the token table."""
        shape = {"n_layer": self.layers, "n_embd": self.width, "n_head": self.heads, "n_positions": self.positions}
        none = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        return {**shape, **none, "vocab_size": vocab, "bos_token_id": 0, "eos_token_id": 0}


@dataclass(frozen=True)
class Work:
    """One row of the comparison: a model, its batch and its number format. A step is one micro-batch."""

    name: str
    model: Model
    micro_batch: int
    seq_len: int
    precision: Literal["fp32", "bf16", "fp16"]
    zero_stage: int

    @property
    def tokens_per_step(self) -> int:
        """All of them are targets: nothing is padded."""
        return self.micro_batch * self.seq_len

    @property
    def flops_per_token(self) -> float:
        """``6 N + 12 layers width seq_len``, the usual count of a training step, with N as in ``Model``."""
        model = self.model
        return 6.0 * model.parameters + 12.0 * model.layers * model.width * self.seq_len


GPT2 = Model(layers=12, width=768, heads=12)
GPT2_MEDIUM = Model(layers=24, width=1024, heads=16)
GPT2_LARGE = Model(layers=36, width=1280, heads=20)
TINY = Model(layers=2, width=64, heads=2, vocab=500, positions=64)

WORKS = {
    work.name: work
    for work in (
        Work("mb8x1024", GPT2, 8, 1024, "bf16", 1),
        Work("mb8x1024-zero2", GPT2, 8, 1024, "bf16", 2),
        Work("mb8x1024-zero3", GPT2, 8, 1024, "bf16", 3),
        Work("mb64x1024", GPT2, 64, 1024, "bf16", 1),
        Work("mb32x128", GPT2, 32, 128, "bf16", 0),
        Work("mb32x128-fp16", GPT2, 32, 128, "fp16", 0),
        Work("medium-mb32x1024", GPT2_MEDIUM, 32, 1024, "bf16", 1),
        Work("large-mb16x1024", GPT2_LARGE, 16, 1024, "bf16", 1),
    )
}

YARDSTICK = "plain_compile"
VARIANTS = {
    "ours": "ours",
    "ours_off": "ours",
    YARDSTICK: "plain",
    "hf_trainer": "hf_trainer",
    "tutorial": "tutorial",
}
"""Ways to train, and the module of each."""

OURS_ALWAYS: Mapping[str, Any] = {"train": {"compile": True, "schedule": "constant"}}
"""What the spec says for every work, beside what `ours.py` takes from the work itself."""

OURS: Mapping[str, Mapping[str, Any]] = {
    "mb8x1024": {},
    "mb8x1024-zero2": {},
    "mb8x1024-zero3": {},
    "mb64x1024": {"train": {"fused_loss": True}},
    "mb32x128": {},
    "mb32x128-fp16": {},
    "medium-mb32x1024": {"train": {"fused_loss": True}},
    "large-mb16x1024": {"train": {"fused_loss": True}},
}
"""Fields of the spec for one work, laid over the others, such as `{"train": {"activation_checkpointing": True}}`."""


@dataclass(frozen=True)
class Scale:
    """How much is measured unless flags say otherwise.

    Attributes:
        steps: optimizer steps that are measured.
        warmup: steps before them.
        repeats: of every variant, each in a process of its own.
    """

    steps: int
    warmup: int
    repeats: int
    works: tuple[str, ...]


SCALES = {"full": Scale(100, 20, 3, tuple(WORKS)), "tiny": Scale(10, 3, 1, ("mb8x1024",))}


def scaled(work: Work, scale: str) -> Work:
    """The work itself, or what is left of it for a CPU: it shows that all variants run, and measures nothing."""
    if scale != "tiny":
        return work
    return replace(work, model=TINY, micro_batch=min(work.micro_batch, 4), seq_len=min(work.seq_len, 32))


@dataclass(frozen=True)
class Request:
    """What a child process is to measure.

    Attributes:
        device: ``cuda`` or ``cpu``.
        compile: whether variants that compile may do so.
        tokens: file of token ids, one after another, of the type ``dtype``.
        text, tokenizer: what these were made of.
        folder: for whatever the child writes.
        started_s: when it was started, in seconds since 1970.
    """

    work: Work
    variant: str
    device: str
    steps: int
    warmup: int
    compile: bool
    tokens: str
    dtype: str
    text: str
    tokenizer: str
    folder: str
    started_s: float

    def to_json(self) -> str:
        """For a file that ``from_json`` reads."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What ``to_json`` wrote."""
        raw = json.loads(text)
        work = Work(**{**raw["work"], "model": Model(**raw["work"]["model"])})
        return cls(**{**raw, "work": work})


@dataclass(frozen=True)
class Measured:
    """What a child process has measured, after the warm-up.

    Attributes:
        step_ms: time of each step, on the device's clock where it has one.
        window_ms: time of one step on the host's clock: from the window's first moment to its last, by its steps.
        peak_mem_gb: what tensors took at most on the GPU since the process began; without a GPU, its resident set.
        setup_s: from the process's start to the end of the warm-up: imports, compilation, first steps.
        loss: of the last step; the Trainer's is the mean of the ten steps that it last logged.
    """

    step_ms: list[float]
    window_ms: float
    peak_mem_gb: float
    setup_s: float
    loss: float
