"""Translate other tools' names of metrics."""

from __future__ import annotations

import re
from typing import Final

_HELD_OUT: Final = frozenset({"val", "valid", "validation", "eval", "evaluation", "test", "dev"})
_TRAINING: Final = frozenset({"train", "training"})
_KNOWN: Final = {
    **dict.fromkeys(("loss", "lm_loss", "ce_loss", "total_loss", "loss_total"), "loss"),
    **dict.fromkeys(("crossentropyloss", "cross_entropy_loss", "cross_entropy", "languagecrossentropy"), "loss"),
    **dict.fromkeys(("loss_step", "step_loss", "reduced_loss"), "loss"),  # of Lightning, Diffusers and NeMo
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
_OF_HELD_OUT: Final = frozenset({"loss", "lm_loss", "ce_loss", "total_loss", "loss_epoch"})
"""Lightning's `val_loss_epoch` is of all held-out data, its `val_loss_step` of a batch."""


def metric_name(tag: str, *, folder: str = "") -> str:
    """Return `loss` for `train/loss`, `eval_loss` for `Loss/val`; an unknown metric keeps its name.

    Args:
        folder: the name of the folder that holds it: `validation`, or `Loss_val`, as torch's `add_scalars` does.
    """
    words = _words(tag)
    training = [word for word in words if word in _TRAINING]
    name = "_".join(word for word in words if word not in _HELD_OUT | _TRAINING | {"metrics"})
    if len(training) > 1 and " " not in tag:  # `train/train_loss` is the Trainer's mean over all steps
        return tag
    if not _HELD_OUT.isdisjoint(words) or (not training and _is_held_out(folder, words)):
        return "eval_loss" if name in _OF_HELD_OUT else tag
    return _KNOWN.get(name, tag)


def _is_held_out(folder: str, words: list[str]) -> bool:
    """A folder must name only held-out data, beside the metric itself: a host or a run may be called `dev-1`."""
    others = {*_words(folder)} - {*words}
    return bool(others) and others <= _HELD_OUT


def _words(tag: str) -> list[str]:
    return re.findall(r"[a-z]+", tag.lower())
