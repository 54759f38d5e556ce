"""Chooses the points of a matrix that run in full, by the measurements of their screening runs. Pure.

A point is compared with those that do the same work, once all their screening runs are settled. The choice is made anew
in every pass, from the same figures: nothing of it is kept but the state of the runs that are left out.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dscampaign.db.metrics import StepFigures
from dscampaign.db.records import AttemptRow, RunRow, warm_up_steps
from dscampaign.db.series import final_loss
from dscampaign.db.states import UNSETTLED_RUN, RunState, Stage
from dscampaign.orchestrator.formatting import count
from dscampaign.orchestrator.spec.effects import WORK
from dscampaign.orchestrator.spec.objective import Objective
from dscampaign.orchestrator.spec.sections import PARETO, share_of

NOISE: Final = 0.03
"""A short run each cannot distinguish two points whose figures lie within this share of each other."""


@dataclass(frozen=True)
class Screening:
    """Measurements of a screening run; None if unknown.

    Attributes:
        step_s: median seconds of a step, without the warm-up.
        tokens_per_s: over all ranks.
        mem_gb: the most that PyTorch held on a GPU, or on CPUs that the processes of a node took.
        loss: in nats, on held-out text if it was evaluated.
    """

    step_s: float | None = None
    tokens_per_s: float | None = None
    mem_gb: float | None = None
    loss: float | None = None

    @classmethod
    def of(cls, steps: Sequence[StepFigures], attempts: Sequence[AttemptRow], untimed: int) -> Screening:
        """Return the measurements of a run with these steps, the first of them not timed, and these attempts."""
        timed = steps[warm_up_steps(untimed, len(steps)) :] or steps
        nodes = [node for attempt in attempts for node in attempt.evidence.get("nodes") or ()]
        host = max((node.get("memory_peak_bytes") or 0 for node in nodes), default=0) / 1e9
        reserved = [step.mem_reserved_gb for step in steps if step.mem_reserved_gb]
        evaluated = [step.eval_loss for step in steps if step.eval_loss is not None]
        losses = [math.nan if step.loss is None else step.loss for step in steps]
        return cls(
            step_s=_median([step.step_time_s for step in timed]),
            tokens_per_s=_median([step.tokens_per_s for step in timed]),
            mem_gb=max(reserved, default=0.0) or host or None,
            loss=evaluated[-1] if evaluated else final_loss(range(1, len(steps) + 1), losses),
        )

    @property
    def speed(self) -> float | None:
        """Tokens, or else steps, per second."""
        return self.tokens_per_s or (1 / self.step_s if self.step_s else None)


@dataclass(frozen=True)
class _Figure:
    """A figure by which points are chosen: more is better if `higher`."""

    name: str
    of: Callable[[Screening], float | None]
    higher: bool = True

    def good(self, screening: Screening) -> float | None:
        """Return the figure such that more is better; None if it is unknown, or no number."""
        value = self.of(screening)
        return None if value is None or not math.isfinite(value) else value if self.higher else -value


_SPEED: Final = _Figure("speed", lambda one: one.speed)
_MEMORY: Final = _Figure("memory", lambda one: one.mem_gb, higher=False)
_LOSS: Final = _Figure("loss", lambda one: one.loss, higher=False)

_BY_OBJECTIVE: Final = {Objective.LOSS: _LOSS, Objective.MEMORY: _MEMORY}
"""All others use speed: a short run shows too little of energy, and time to a loss is mostly speed."""

_LEARNS: Final = (Objective.LOSS, Objective.TIME_TO_LOSS)


@dataclass(frozen=True)
class ScreeningRule:
    """How points are chosen: the spec's `screen.keep` and `objective`."""

    keep: str | int
    objective: Objective | None = None

    @classmethod
    def of(cls, provenance: Mapping[str, Any]) -> ScreeningRule | None:
        """Return the rule of a campaign; None if it screens nothing."""
        screen, objective = provenance.get("screen"), provenance.get("objective")
        return cls(screen["keep"], Objective(objective) if objective else None) if screen else None

    @property
    def text(self) -> str:
        """`the best 3 by speed`, `those within 10% of the best by loss`."""
        first, second = self._front
        if self.keep == PARETO:
            return f"points that no other point beats in {first.name} and {second.name}"
        if isinstance(self.keep, int):
            return f"the best {self.keep} by {self._by.name}" if self.keep > 1 else f"the best by {self._by.name}"
        return f"those {self.keep} of the best by {self._by.name}"

    @property
    def _by(self) -> _Figure:
        return _BY_OBJECTIVE.get(self.objective, _SPEED) if self.objective else _SPEED

    @property
    def _front(self) -> tuple[_Figure, _Figure]:
        return _SPEED, _LOSS if self.objective in _LEARNS else _MEMORY

    def left_out(self, measured: Mapping[str, Screening]) -> list[str]:
        """Return the names of the points that do not run in full; a point without a figure runs."""
        if self.keep == PARETO:
            return [
                name
                for name, screening in measured.items()
                if any(self._beats(b, screening) for b in measured.values())
            ]
        ranked = self._ranked(measured)
        if isinstance(self.keep, int):
            return ranked[self.keep :]
        share = share_of(self.keep)
        return [name for name in ranked if self._behind(measured[name], measured[ranked[0]]) > share]

    def _ranked(self, measured: Mapping[str, Screening]) -> list[str]:
        values = {name: good for name, screening in measured.items() if (good := self._by.good(screening)) is not None}
        return sorted(values, key=lambda name: -values[name])

    def _behind(self, screening: Screening, best: Screening) -> float:
        """The part by which a point is worse than the best."""
        mine, top = self._by.of(screening), self._by.of(best)
        if not mine or not top:
            return 0.0
        return 1 - mine / top if self._by.higher else mine / top - 1

    def _beats(self, other: Screening, screening: Screening) -> bool:
        pairs = [(each.good(other), each.good(screening)) for each in self._front]
        values = [(theirs, mine) for theirs, mine in pairs if theirs is not None and mine is not None]
        clearly = any(theirs - mine > NOISE * abs(mine) for theirs, mine in values)
        return bool(values) and clearly and all(theirs >= mine for theirs, mine in values)


def gates(
    runs: Sequence[RunRow], measured: Mapping[int, Screening], provenance: Mapping[str, Any]
) -> dict[int, tuple[RunState, str]]:
    """Return the state, and why, of the runs that may not start now, by id: their points are screened, or left out.

    A run that has begun stays as it is, and a run that the user has retried starts in any case.

    Args:
        runs: all of a campaign that its spec names, also those that its user has cancelled.
        measured: of its screening runs, by id.
        provenance: of the campaign.
    """
    rule = ScreeningRule.of(provenance)
    if rule is None:
        return {}
    screens: dict[str, dict[str, RunRow]] = defaultdict(dict)
    for run in runs:
        if run.stage is Stage.SCREENING:
            screens[work_of(run.config)][point_of(run.params)] = run
    held: dict[str, tuple[RunState, str]] = {}
    for group in screens.values():
        held |= _of_group(group, measured, rule)
    waiting = (run for run in runs if run.stage is Stage.FULL and not run.generation and not run.retry_epoch)
    return {run.id: held[point] for run in waiting if (point := point_of(run.params)) in held}


def _of_group(
    group: Mapping[str, RunRow], measured: Mapping[int, Screening], rule: ScreeningRule
) -> dict[str, tuple[RunState, str]]:
    open_runs = [run for run in group.values() if run.state in UNSETTLED_RUN]
    if open_runs:
        reason = f"waits for the screening: {len(group) - len(open_runs)} of {count(len(group), 'point')} done"
        return dict.fromkeys(group, (RunState.PENDING, reason))
    ended = {point: run for point, run in group.items() if run.state is not RunState.COMPLETED}
    lost = {point: (RunState.SCREENED, _no_result(run)) for point, run in ended.items()}
    figures = {point: measured.get(run.id, Screening()) for point, run in group.items() if point not in ended}
    return lost | dict.fromkeys(rule.left_out(figures), (RunState.SCREENED, f"not among {rule.text}"))


def _no_result(run: RunRow) -> str:
    ends = {RunState.FAILED: "failed", RunState.HELD: "is held"}
    reason = f": {run.reason}" if run.reason else ""
    return f"its screening run {run.name} {ends.get(run.state, 'was cancelled')}{reason}"


def work_of(config: Mapping[str, Any]) -> str:
    """Return a key of runs whose points may be compared: the same model, data and tokens per step on as many ranks."""
    train, slurm = config.get("train") or {}, config.get("slurm") or {}
    nodes = slurm.get("nodes", 1) if config.get("executor") != "local" else 1
    same = {name: train.get(name) for name in WORK if name not in ("steps", "epochs")}
    return json.dumps([same, nodes, config.get("ranks_per_node")], sort_keys=True, default=str)


def point_of(params: Mapping[str, Any]) -> str:
    """Return a key of all runs of a point of the matrix."""
    return json.dumps(params, sort_keys=True, default=str)


def _median(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value) and value > 0]
    return statistics.median(finite) if finite else None
