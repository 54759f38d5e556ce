"""Which nodes the campaign does without for now. Pure.

A node that proved bad is a strike against it for all runs of the campaign: what is surely the hardware's fault excludes
it at once, what may be another's fault only the second time. Strikes expire, and never more than a quarter of the
cluster is excluded: beyond that the fault is not in the nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from .attempt_history import EndedAttempt

MOST_EXCLUDED: Final = 0.25


def excluded(ended: Iterable[EndedAttempt], now_s: float, exclude_h: float, nodes: int | None) -> tuple[str, ...]:
    """The nodes that no attempt shall run on now, by name.

    Args:
        ended: the ended attempts of all runs.
        now_s: the store's clock.
        exclude_h: hours that a strike lasts.
        nodes: nodes of the cluster; where nobody knows, one node is excluded at most.
    """
    weights: dict[str, float] = defaultdict(float)
    newest: dict[str, float] = defaultdict(float)
    for past in ended:
        strike = past.kind.policy.strike
        if strike and past.host and now_s - past.ended_s < min(exclude_h, strike.hours) * 3600:
            weights[past.host] += strike.weight
            newest[past.host] = max(newest[past.host], past.ended_s)
    bad = [host for host, weight in weights.items() if weight >= 1.0]
    worst_first = sorted(bad, key=lambda host: (-weights[host], -newest[host], host))
    room = 1 if nodes is None else int(nodes * MOST_EXCLUDED)
    return tuple(sorted(worst_first[:room]))
