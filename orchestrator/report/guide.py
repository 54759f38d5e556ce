"""What a step up in ZeRO, offload or memory costs, as this campaign measured it. Pure.

The usual advice ("ZeRO 2 is 10 to 15 % slower", "offload costs a half") is about other models on other machines; these
sentences are about the user's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from .conditions import Condition
from .judge import Judged
from .recommend import Recommendation

ROOMY: Final = 0.60
TIGHT: Final = 0.80
"""Shares of the usable memory."""

LEAST_GB: Final = 0.1

_HOW: Final = ("engine", "zero_stage", "offload", "precision", "compile", "deepcompile", "activation_checkpointing")


def guide(judged: Sequence[Judged], recommendation: Recommendation) -> list[str]:
    """Sentences on what was measured, and what follows for the next run."""
    chosen = recommendation.chosen
    return (
        [*_memory(chosen), *_alone(chosen), *_too_large(judged), *_steps(judged, chosen)]
        if chosen
        else [*_too_large(judged)]
    )


def _memory(chosen: Condition) -> Iterator[str]:
    share = chosen.highest(lambda run: run.memory.share)
    if share is None:
        return
    if share < ROOMY:
        yield (
            f"{chosen.name} takes {share:.0%} of the GPU's memory: a larger micro-batch is likely to be faster, and a "
            "lower ZeRO stage or no offload costs less."
        )
    elif share > TIGHT:
        yield f"{chosen.name} takes {share:.0%} of the GPU's memory: longer samples or a larger model need ZeRO 2 or 3."


def _alone(chosen: Condition) -> Iterator[str]:
    stage, offload = chosen.field("zero_stage"), chosen.field("offload")
    if chosen.runs[0].world_size == 1 and stage and offload in (None, "none"):
        yield f"On one rank ZeRO {stage} has nobody to share with: it saves memory only together with offload."


def _too_large(judged: Sequence[Judged]) -> Iterator[str]:
    names = [one.condition.name for one in judged if any(_ran_out(run.cost.lost) for run in one.condition.runs)]
    if names:
        saves = "What saves most: ZeRO 3, then offload, then a smaller micro-batch."
        yield f"Out of memory as configured: {', '.join(names)}. {saves}"


def _ran_out(lost: object) -> bool:
    return isinstance(lost, dict) and ("oom" in lost or "fragmentation" in lost)


def _steps(judged: Sequence[Judged], chosen: Condition) -> Iterator[str]:
    """Conditions that differ from the chosen one or the baseline in one field of the strategy."""
    told = [one for one in judged if one.is_baseline or one.condition is chosen]
    for index, one in enumerate(told):
        for other in judged:
            differs = _differing(one.condition, other.condition)
            if len(differs) == 1 and differs[0] in _HOW and one.speed and other.speed and other not in told[:index]:
                yield _trade(one, other, differs[0])


def _differing(one: Condition, other: Condition) -> list[str]:
    """Fields of the trainer's configuration that differ. The word for a strategy only repeats some of them."""
    left, right = (each.runs[0].config.get("train") or {} for each in (one, other))
    names = {*left, *right} - {"strategy", "seed"}
    return sorted(name for name in names if left.get(name) != right.get(name))


def _trade(before: Judged, after: Judged, field: str) -> str:
    assert before.speed
    assert after.speed
    change = f"{field} {before.condition.field(field)} → {after.condition.field(field)}"
    speed = f"{after.speed.value / before.speed.value:.2f} × the speed"
    memory = [one.condition.highest(lambda run: run.memory.reserved) for one in (before, after)]
    saved = memory[1] - memory[0] if memory[0] is not None and memory[1] is not None else 0.0
    known = f", {saved:+.1f} GB" if abs(saved) >= LEAST_GB else ""
    return f"{change}: {speed}{known} ({before.condition.name} → {after.condition.name})."
