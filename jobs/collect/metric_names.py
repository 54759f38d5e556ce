"""What other tools call a metric, in the words of this program."""

from __future__ import annotations

import re
from typing import Final

_HELD_OUT: Final = frozenset({"val", "valid", "validation", "eval", "evaluation", "test", "dev"})
_TRAINING: Final = frozenset({"train", "training"})
_KNOWN: Final = {
    **dict.fromkeys(("loss", "lm_loss", "ce_loss", "total_loss"), "loss"),
    "lr": "lr",
    "learning_rate": "lr",
    "grad_norm": "grad_norm",
    "gradnorm": "grad_norm",
    "gradient_norm": "grad_norm",
    "step_time": "step_time",
    "tokens_per_s": "tokens_per_s",
    "tokens_per_sec": "tokens_per_s",
    "tokens_per_second": "tokens_per_s",
}


def metric_name(said: str, *, held_out: bool = False) -> str:
    """`train/loss` is `loss`, `Loss/val` is `eval_loss`; what is not known keeps its name.

    Args:
        held_out: whether it stands where only figures of held-out data are.
    """
    words = re.findall(r"[a-z]+", said.lower())
    training = [word for word in words if word in _TRAINING]
    held_out |= is_held_out(said)
    name = _KNOWN.get("_".join(word for word in words if word not in _HELD_OUT | _TRAINING))
    if name is None or len(training) > 1:  # `train/train_loss` is the Trainer's mean over all steps
        return said
    if name == "loss":
        return "eval_loss" if held_out else "loss"
    return said if held_out else name


def is_held_out(said: str) -> bool:
    """Whether a name speaks of held-out data."""
    return not _HELD_OUT.isdisjoint(re.findall(r"[a-z]+", said.lower()))
