"""The effect of an axis as one line, to compare with."""

from __future__ import annotations

from dscampaign.orchestrator.report.compare.sensitivity import Sensitivity, loss_effect, memory_effect, speed_effect


def effect_line(change: Sensitivity) -> str:
    """`zero_stage 1 → 2: 1.20 × the speed, -1.0 GB, equal held-out loss (a → b)`."""
    memory = memory_effect(change)
    effects = [speed_effect(change), "" if memory == "the same memory" else memory, loss_effect(change)]
    sure = change.proofs.get("speed", change.proofs.get("loss", True))
    (before, after), *more = change.pairs
    pairs = f"{before.condition.name} → {after.condition.name}{f' and {len(more)} more' if more else ''}"
    pairs += "" if sure else "; not proven"
    return f"{change.change}: {', '.join(filter(None, effects))} ({pairs})."
