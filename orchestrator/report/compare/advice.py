"""Remarks beside the recommendation, and next experiments. Pure.

The usual advice ("ZeRO 2 is 10 to 15 % slower", "offload costs a half") is about other models on other machines; the
sentences here are about this campaign's measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dscampaign.orchestrator.formatting import some
from dscampaign.orchestrator.report.measure.timing import LEAST_S, LEAST_STEPS
from dscampaign.orchestrator.spec.model import AUTO

from .baseline import BaselineComparison
from .conditions import Condition
from .ignored_axes import ignored_axes

ROOMY: Final = 0.60
TIGHT: Final = 0.80
"""Shares of the usable memory."""

UNLIKE: Final = 0.05
"""Part of the steps: held-out losses that were measured further apart than this do not compare."""

SCATTER: Final = 1.25
"""Repeats of one condition usually differ by a few percent."""


def advice(comparisons: Sequence[BaselineComparison], chosen: Condition | None) -> Iterator[str]:
    """Yield remarks on the measurements and the next run; `chosen` is None if no condition is chosen."""
    if chosen and chosen.heeds_config:
        yield from _room(chosen)
        yield from _alone(chosen)
    yield from _too_large([one for one in comparisons if one.condition is not chosen and one.condition.heeds_config])
    yield from _unlike_points(comparisons)
    yield from _scattered(comparisons)
    yield from _briefly_timed(comparisons)
    yield from ignored_axes(run for one in comparisons for run in one.condition.runs)


def unread_config(chosen: Condition) -> str:
    """Return the reason that no DeepSpeed configuration of a condition is shown; empty if it is shown."""
    if chosen.heeds_config:
        return ""
    if {run.read_config for run in chosen.runs} == {False}:
        return f"{chosen.name}'s script did not read CAMPAIGN_DS_CONFIG, so no DeepSpeed configuration is shown."
    return (
        f"No DeepSpeed configuration is shown: it is not known whether {chosen.name}'s script read CAMPAIGN_DS_CONFIG."
    )


def _room(chosen: Condition) -> Iterator[str]:
    share = chosen.value("mem_share")
    if share is None:
        return
    takes = f"{chosen.name} takes {share:.0%} of the GPU's memory"
    if share < ROOMY and (use := _use_of_room(chosen)):
        yield f"{takes}: {use}."
    elif share > TIGHT:
        yield f"{takes}: longer samples or a larger model need {_more_room(chosen)}."


def _use_of_room(chosen: Condition) -> str:
    """Return a use for free memory; "" if nothing is known to be faster."""
    offloaded, searched = _is_offloaded(chosen), chosen.field("micro_batch") == AUTO
    whole = all(run.accumulation == 1 for run in chosen.counted)
    if not (whole or searched):
        by_search = "" if chosen.runs[0].config.get("command") else " (`micro_batch: auto` finds it)"
        return f"a larger micro-batch is likely to be faster{by_search}{', and so is no offload' if offloaded else ''}"
    if offloaded:
        return "no offload is likely to be faster"
    return "its micro-batch is all that a rank has of a step; a larger `global_batch` would use more" if whole else ""


def _more_room(chosen: Condition) -> str:
    """Return a way to need less GPU memory: more sharding if there are ranks to shard across, else offload."""
    if chosen.ranks > (chosen.field("tensor_parallel") or 1) and _stage(chosen) < 3:
        return ("ZeRO 1, 2 or 3", "ZeRO 2 or 3", "ZeRO 3")[_stage(chosen)]
    return "a smaller micro-batch or more GPUs" if _is_offloaded(chosen) else "offload or more GPUs"


def _is_offloaded(chosen: Condition) -> bool:
    return chosen.field("offload") not in (None, "none")


def _stage(chosen: Condition) -> int:
    """Of ZeRO; FSDP2 shards as much as its stage 3."""
    return 3 if chosen.field("engine") == "fsdp2" else int(chosen.field("zero_stage") or 0)


def _alone(chosen: Condition) -> Iterator[str]:
    sharded = "FSDP2" if chosen.field("engine") == "fsdp2" else f"ZeRO {_stage(chosen)}" if _stage(chosen) else ""
    if chosen.ranks == 1 and sharded and not _is_offloaded(chosen):
        yield f"With one rank, {sharded} has nothing to shard across."


def _too_large(comparisons: Sequence[BaselineComparison]) -> Iterator[str]:
    lost = {one.condition.name: {kind for run in one.condition.runs for kind in run.cost.lost} for one in comparisons}
    if names := [name for name, kinds in lost.items() if kinds & {"oom", "fragmentation"}]:
        saves = "What saves most: ZeRO 3, then offload, then a smaller micro-batch."
        yield f"Out of memory as configured: {', '.join(names)}. {saves}"


def _unlike_points(comparisons: Sequence[BaselineComparison]) -> Iterator[str]:
    points = {
        one.condition.name: min(shares)
        for one in comparisons
        if (shares := [run.curve.evaluated for run in one.condition.counted if run.curve.evaluated is not None])
    }
    latest = max(points.values(), default=0.0)
    early = [name for name, share in points.items() if share < latest - UNLIKE]
    if early:
        share = min(points.values())
        yield (
            f"The last held-out loss of {some(early)} was measured after {share:.0%} of the steps, that of others "
            f"after {latest:.0%}: evaluate at the same point to compare them."
        )


def _scattered(comparisons: Sequence[BaselineComparison]) -> Iterator[str]:
    for one in comparisons:
        speeds = one.speeds
        if len(speeds) > 1 and max(speeds) > SCATTER * min(speeds):
            yield (
                f"The fastest repeat of {one.condition.name} ran at {max(speeds) / min(speeds):.1f} × the slowest: "
                "something else may have used the machine."
            )


def _briefly_timed(comparisons: Sequence[BaselineComparison]) -> Iterator[str]:
    timed = [one for one in comparisons if one.speeds]
    brief = [one for one in timed if any(run.timing and run.timing.short for run in one.condition.counted)]
    if len(timed) > 1 and brief:
        names = "" if len(brief) == len(timed) else f" of {some([one.condition.name for one in brief])}"
        yield (
            f"Speeds{names} are from fewer than {LEAST_STEPS} timed steps or less than {LEAST_S:.0f} s of them: "
            "longer runs make them surer."
        )
