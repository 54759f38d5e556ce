"""The effect of an axis as one line, to compare with."""

from __future__ import annotations

from dscampaign.orchestrator.report.compare.sensitivity import (
    Sensitivity,
    certainties,
    change_in_words,
    loss_effect,
    memory_effect,
    pair_names,
    speed_effect,
)


def effect_line(change: Sensitivity) -> str:
    """`zero_stage 1 → 2: 1.20 × the speed, -1.0 GB, equal held-out loss (a → b)`."""
    memory = memory_effect(change)
    effects = [speed_effect(change), "" if memory == "the same memory" else memory, loss_effect(change)]
    certainty = {"loss": "", **certainties(change)}
    sure = certainty.get("speed", certainty["loss"])
    pairs = "; ".join(filter(None, [pair_names(change), sure.replace("established", "")]))
    return f"{change_in_words(change)}: {', '.join(filter(None, effects))} ({pairs})."
