"""The GPU memory of the loss, by arithmetic: logits are often the largest tensors of a step. Pure.

A lower bound, like the states: at the loss a rank holds its weights, optimizer states and logits.
"""

from __future__ import annotations

from typing import Final

from dscampaign.jobs.shared.model_shapes import VOCAB_MULTIPLE
from dscampaign.orchestrator.spec.model import RunConfig

from .parameter_count import vocabulary_of
from .zero_memory import GB

_FULL: Final = 4  # bytes of a number in fp32
_HALF: Final = 2  # bytes of one in bf16 or fp16
_EAGER: Final = 3 * _FULL
"""Of each logit at the peak, in the backward pass: its log-probability, the gradient by that, and its own gradient."""
STRETCH: Final = 8192
"""Tokens that the trainer's fused loss works on at a time."""


def loss_gb(config: RunConfig, micro_batch: int) -> float | None:
    """Return the least memory of a micro-batch's loss, in GB of 10^9 bytes.

    Compiled, it may need the logits alone; fused, the logits of a stretch of tokens and their gradient.

    Returns:
        None for a command, and for an unknown vocabulary.
    """
    train = config.train
    known = None if train.model is None else vocabulary_of(train.model, train.tokenizer)
    if known is None or config.command is not None:
        return None
    columns = known if train.pretrained else -(-known // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    size = _HALF if train.precision in ("bf16", "fp16") else _FULL
    tokens = micro_batch * train.seq_len // train.sequence_parallel
    if train.fused_loss:
        return 2 * size * min(tokens, STRETCH) * columns / GB
    return (size if train.compile or train.deepcompile else _EAGER) * tokens * columns / GB
