"""What a step up in ZeRO, offload or memory costs, as this campaign measured it. Pure.

The usual advice ("ZeRO 2 is 10 to 15 % slower", "offload costs a half") is about other models on other machines; these
sentences are about the user's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from .baseline import BaselineComparison
from .conditions import Condition
from .recommend import Recommendation
from .sensitivity import sensitivities, sensitivity_sentence
from .statistics import LOSS_MARGIN_NATS

ROOMY: Final = 0.60
TIGHT: Final = 0.80
"""Shares of the usable memory."""

SCATTER: Final = 1.25
"""Repeats of one condition usually differ by a few percent."""

COARSE_NATS: Final = 5 * LOSS_MARGIN_NATS
"""A margin above this hides what most comparisons are after."""


def guide(judged: Sequence[BaselineComparison], recommendation: Recommendation) -> list[str]:
    """Sentences on what was measured, and what follows for the next run."""
    chosen = recommendation.chosen
    about = [*_memory(chosen), *_alone(chosen)] if chosen else []
    return [
        *about,
        *_too_large(judged),
        *_coarse(judged),
        *_scattered(judged),
        *(sensitivity_sentence(price) for price in sensitivities(judged)),
    ]


def _memory(chosen: Condition) -> Iterator[str]:
    share = chosen.highest(lambda run: run.memory.share)
    if share is None:
        return
    takes = f"{chosen.name} takes {share:.0%} of the GPU's memory"
    if share < ROOMY:
        offloaded = chosen.field("offload") not in (None, "none")
        yield f"{takes}: a larger micro-batch is likely to be faster{', and so is no offload' if offloaded else ''}."
    elif share > TIGHT:
        yield f"{takes}: longer samples or a larger model need ZeRO 2 or 3."


def _alone(chosen: Condition) -> Iterator[str]:
    stage, offload = chosen.field("zero_stage"), chosen.field("offload")
    if chosen.runs[0].world_size == 1 and stage and offload in (None, "none"):
        yield f"On one rank ZeRO {stage} has nobody to share with: it saves memory only together with offload."


def _too_large(judged: Sequence[BaselineComparison]) -> Iterator[str]:
    names = [one.condition.name for one in judged if any(_ran_out(run.cost.lost) for run in one.condition.runs)]
    if names:
        saves = "What saves most: ZeRO 3, then offload, then a smaller micro-batch."
        yield f"Out of memory as configured: {', '.join(names)}. {saves}"


def _ran_out(lost: object) -> bool:
    return isinstance(lost, dict) and ("oom" in lost or "fragmentation" in lost)


def _coarse(judged: Sequence[BaselineComparison]) -> Iterator[str]:
    margin = next((one.loss.margin for one in judged if one.is_baseline), 0.0)
    if margin > COARSE_NATS:
        yield (
            f"The baseline's repeats differ so much that losses {margin:.3f} nats apart count as equal: longer runs or "
            "more held-out text would show smaller differences."
        )


def _scattered(judged: Sequence[BaselineComparison]) -> Iterator[str]:
    for one in judged:
        speeds = one.speeds
        if len(speeds) > 1 and max(speeds) > SCATTER * min(speeds):
            yield (
                f"The fastest repeat of {one.condition.name} ran at {max(speeds) / min(speeds):.1f} × the slowest: "
                "something else may have used the machine."
            )
