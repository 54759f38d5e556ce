"""A line about a run or an event: the present phase, why a run waits, is silent or failed. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from dscampaign.db.records import ENDING, EventRow, RunStatus
from dscampaign.db.states import CANCELLING, AttemptState, RunState
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.formatting import clean, duration, figure, short_number, shorten, size, words

from .status import LOOKED_S, CampaignStatus

LOOKS: Final[dict[str, tuple[str, str]]] = {
    RunState.PENDING: ("·", "dim"),
    RunState.QUEUED: ("…", "blue"),
    RunState.RUNNING: ("▶", "cyan"),
    CANCELLING: ("−", "yellow"),
    RunState.COMPLETED: ("✓", "green"),
    RunState.FAILED: ("✗", "red"),
    RunState.HELD: ("!", "yellow"),
    RunState.CANCELLED: ("−", "dim"),
    RunState.SCREENED: ("−", "dim"),
    RunState.PRUNED: ("−", "dim"),
    AttemptState.INTENT: ("·", "dim"),
    FailureClass.STOPPED: ("−", "dim"),
}
"""Sign and colour of each state of a run or an attempt, in the order of a run's life."""

TRAINING: Final = "training"
_PHASES: Final = {
    "start": "starting",
    "compile": "compiling",
    "train": TRAINING,
    "steps": TRAINING,
    "eval": "evaluating",
    "checkpoint": "saving",
    ENDING: "ending",
}
"""The phases of `jobs/report.py` as a user reads them; a script's own phases are shown as they are."""


def doing(run: RunStatus, status: CampaignStatus) -> str:
    """`evaluating for 1 min 35 s`, `training`: the present phase of a run; "" if no pass has looked."""
    looked_s = status.reconciler.expires_s if status.reconciler else 0.0
    if run.shown != RunState.RUNNING or not run.phase or looked_s <= status.now_s - LOOKED_S:
        return ""
    steps = run.phase == "start" and (run.ts_s or 0.0) > (run.phase_since_s or 0.0)  # since a pass looked
    word = TRAINING if steps else _PHASES.get(run.phase, words(clean(run.phase)))
    if word == TRAINING or run.phase_since_s is None:
        return word
    return f"{word} for {duration(status.now_s - run.phase_since_s)}"


def why(run: RunStatus, now_s: float) -> str:
    """Return the reason for a run's state, or how long a running attempt has been silent; "" for neither."""
    heard_s = max(run.ts_s or 0.0, run.started_s or 0.0)  # the newest figures may be those of the attempt before
    quiet = run.ts_s is not None and now_s - heard_s > max(120.0, 20 * (run.step_time_s or 0.0))
    if run.shown == RunState.RUNNING and quiet and not run.reason:
        return f"silent for {duration(now_s - heard_s)}"
    return run.reason and clean(run.reason)


def turn(status: CampaignStatus) -> str:
    """Return why runs without another reason are pending: the limit of running runs; "" if it is not reached."""
    limit = status.campaign.limits.get("running")
    active = sum(run.state in (RunState.QUEUED, RunState.RUNNING) for run in status.runs)
    return f"waits for its turn, limits.running = {limit}" if limit is not None and active >= limit else ""


_EVENTS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "script.start": lambda data: f"training starts after step {data['step']:,.0f}",
    "script.target": lambda data: f"trains to step {data['steps']:,.0f}",
    "script.checkpoint": lambda data: f"checkpoint of step {data['step']:,.0f}, {size(data['size_bytes'])}",
    "script.memory": lambda data: f"at most {data['peak_reserved_gb']:.1f} GB of memory reserved",
    "script.speed": lambda data: f"{short_number(data['tokens_per_s'])} tokens/s after the warm-up",
    "script.micro_batch_trial": lambda data: f"micro-batch {data['micro_batch']:.0f}: {data['step_s']:.4g} s a step",
}
"""The texts of events without a message, by kind; a script may give other fields than the built-in trainer."""


def event_text(event: EventRow) -> str:
    """Return the message of the event, or its reason; without them, its main facts."""
    if text := event.message or event.data.get("reason"):
        return clean(str(text))
    with suppress(LookupError, TypeError, ValueError, OverflowError):
        return _EVENTS[event.kind](event.data)

    def fact(value: Any) -> str:
        text = value if isinstance(value, str) else json.dumps(value)
        return figure(value) if isinstance(value, float) else clean(text)

    facts = (f"{words(clean(name))} {fact(it)}" for name, it in event.data.items() if not isinstance(it, dict))
    kind = words(event.kind.removeprefix("script."))
    return shorten(": ".join(filter(None, (kind, ", ".join(facts)))), 120)
