"""The effect of each field of `train`: on the learned model, on a compared figure, or on neither."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class Effect(Enum):
    """The effect of a field of `train`."""

    LEARNED = "the learned model, or the speed: part of the experiment's digest"
    MEASURED = "a compared figure, not the learned model: runs with results keep it, too"
    NONE = "neither"


EFFECTS: Final[Mapping[str, Effect]] = {
    field: effect
    for effect, fields in {
        Effect.LEARNED: """model pretrained tokenizer dataset seq_len global_batch micro_batch steps epochs precision
            strategy engine zero_stage offload fsdp2_reduce nvme_path lr schedule warmup_steps min_lr_ratio weight_decay
            beta1 beta2 eps grad_clip seed dropout activation_checkpointing compile deepcompile deepspeed_patches
            cuda_graphs attention fused_loss sequence_parallel tensor_parallel""",
        Effect.MEASURED: "eval_batches log_every untimed_steps",
        Effect.NONE: "checkpoint_every keep_checkpoints keep_best universal_checkpoint eval_every profile_at",
    }.items()
    for field in fields.split()
}
"""Every field of `train`. One that becomes `LEARNED` changes the digests of the runs that set it."""

WORK: Final = ("model", "pretrained", "seq_len", "global_batch", "steps", "epochs", "dataset", "tokenizer")
"""Fields of `train` for the model, its data and its size; all others set the way of training."""

MEASURES: Final = tuple(field for field, effect in EFFECTS.items() if effect is Effect.MEASURED)
COMPARES_ALIKE: Final = frozenset(field for field, effect in EFFECTS.items() if effect is Effect.NONE)
DESCRIBES_ONLY: Final = COMPARES_ALIKE.union(MEASURES)
"""Fields of `train` that observe or save a run without changing the model."""

_OPTIMIZER: Final = ("lr", "schedule", "warmup_steps", "min_lr_ratio", "weight_decay", "beta1", "beta2", "eps")

LEARNING: Final = frozenset([*WORK, *_OPTIMIZER, "grad_clip", "dropout"])
"""Fields of `train` that change the learned weights; all others change only their computation."""

ALIKE_IN_SPEED: Final = DESCRIBES_ONLY.union(["seed", "steps", "epochs", *_OPTIMIZER])
"""Fields of `train` that change neither the time nor the memory of a step."""
