"""The effect of each field of `train`: on the learned model, on a compared figure, or on neither."""

from __future__ import annotations

from typing import Final

LEARNED: Final = frozenset(
    """model pretrained tokenizer dataset seq_len global_batch micro_batch steps epochs precision strategy engine
    zero_stage offload fsdp2_reduce nvme_path lr schedule schedule_steps warmup_steps min_lr_ratio weight_decay beta1
    beta2 eps grad_clip seed dropout activation_checkpointing compile deepcompile deepspeed_patches
    attention fused_loss sequence_parallel tensor_parallel""".split()  # noqa: SIM905
)
"""Fields that change the learned model, or the speed: they are part of the experiment's digest. Another of these
changes the digests of the runs that set it."""
MEASURES: Final = ("eval_batches", "log_every", "untimed_steps")
"""Fields that change a compared figure, not the learned model: runs with results keep them, too."""
COMPARES_ALIKE: Final = frozenset(
    "checkpoint_every keep_checkpoints keep_best eval_every profile_at".split()  # noqa: SIM905
)
DESCRIBES_ONLY: Final = COMPARES_ALIKE.union(MEASURES)
"""Fields that observe or save a run without changing the model."""
FIELDS: Final = LEARNED | DESCRIBES_ONLY

WORK: Final = ("model", "pretrained", "seq_len", "global_batch", "steps", "epochs", "dataset", "tokenizer")
"""Fields of `train` for the model, its data and its size; all others set the way of training."""

_OPTIMIZER: Final = "lr schedule schedule_steps warmup_steps min_lr_ratio weight_decay beta1 beta2 eps".split()  # noqa: SIM905

LEARNING: Final = frozenset([*WORK, *_OPTIMIZER, "grad_clip", "dropout"])
"""Fields of `train` that change the learned weights; all others change only their computation."""

ALIKE_IN_SPEED: Final = DESCRIBES_ONLY.union(["seed", "steps", "epochs", *_OPTIMIZER])
"""Fields of `train` that change neither the time nor the memory of a step."""
