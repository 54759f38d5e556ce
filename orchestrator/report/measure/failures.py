"""What stands behind the figures: the inputs of MFU, the machines, the attempts that failed, each GPU of a few runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection

from ....db import queries
from ....db.gpu_records import GpuDevice, GpuUse
from ....db.records import SUBMITTING, AttemptRow, EventRow, RunState
from ....db.store import Store
from ...views.text import clean
from ..compare.conditions import Condition
from ..compare.results import Results
from .run import MeasuredRun
from .telemetry import MOST_RUNS

_WELL: Final = frozenset({"completed", "stopped"})
"""Failure classes that are no failure."""

_SAID: Final = {"script.start": "start", "script.speed": "speed"}


@dataclass(frozen=True)
class Behind:
    """What stands behind one run's figures.

    Attributes:
        start, speed: what the trainer said last of the model, and of its own speed.
        devices: GPUs of the newest attempt.
        hosts: nodes of the newest attempt that ended.
        host_limits_gb: by node, how much memory the job could have had there; nodes without a limit are missing.
    """

    start: Mapping[str, Any] = field(default_factory=dict)
    speed: Mapping[str, Any] = field(default_factory=dict)
    devices: tuple[GpuDevice, ...] = ()
    hosts: tuple[str, ...] = ()
    host_limits_gb: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """An attempt that failed.

    Attributes:
        kind: its failure class.
        then: what was done about it.
    """

    run: str
    generation: int
    kind: str
    reason: str
    then: str


@dataclass(frozen=True)
class Background:
    """What stands behind a report's figures.

    Attributes:
        runs: by name of the run; those without any attempt are missing.
        failures: in the order of the matrix.
        gpus: of the runs whose GPUs are drawn over time, each GPU with the run's name.
    """

    runs: Mapping[str, Behind] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    gpus: tuple[tuple[str, GpuUse], ...] = ()

    def of(self, condition: Condition) -> Behind:
        """Of the first repeat that says of its speed, else of the first that ran."""
        found = [behind for run in condition.runs if (behind := self.runs.get(run.name))]
        return next((behind for behind in found if behind.speed), found[0] if found else Behind())


def read_background(store: Store, results: Results, first: Sequence[Condition]) -> Background:
    """Reads it, once for all runs.

    Args:
        store: the campaign's store.
        results: the campaign's results.
        first: conditions in the order in which their GPUs are drawn over time.
    """
    with store.read() as conn:
        attempts: dict[int, list[AttemptRow]] = defaultdict(list)
        for row in queries.attempts(conn, results.campaign.id):
            attempts[row.run_id].append(row)
        ids = {row.name: row.id for row in queries.runs(conn, results.campaign.id)}
        begun = [(run, own) for run in results.runs if (own := attempts.get(ids.get(run.name, 0)))]
        events = queries.events(conn, results.campaign.id)
        said, excluded = _said(events), _excluded(events)
        return Background(
            runs={run.name: _behind(conn, run, own, said) for run, own in begun if run.attempt_id is not None},
            failures=tuple(failure for run, own in begun for failure in _failures(run, own, excluded)),
            gpus=tuple(_each_gpu(conn, first)),
        )


def _said(events: Sequence[EventRow]) -> dict[tuple[int | None, str], dict[str, Any]]:
    said: dict[tuple[int | None, str], dict[str, Any]] = defaultdict(dict)
    for event in events:
        if name := _SAID.get(event.kind):
            said[event.attempt_id, name] |= event.data
    return said


def _excluded(events: Sequence[EventRow]) -> dict[int | None, Sequence[str]]:
    """Nodes that an attempt was to do without, by its id."""
    return {event.attempt_id: event.data.get("exclude", ()) for event in events if event.kind == SUBMITTING}


def _behind(
    conn: Connection,
    run: MeasuredRun,
    attempts: Sequence[AttemptRow],
    said: Mapping[tuple[int | None, str], dict[str, Any]],
) -> Behind:
    newest = next(row for row in attempts if row.id == run.attempt_id)
    mine = [row for row in attempts if row.config_hash == newest.config_hash][::-1]
    nodes = next((row.evidence["nodes"] for row in mine if row.evidence.get("nodes")), ())
    return Behind(
        **{name: next((said[row.id, name] for row in mine if (row.id, name) in said), {}) for name in _SAID.values()},
        devices=tuple(queries.gpu_devices(conn, newest.id)),
        hosts=tuple(dict.fromkeys(str(node["host"]) for node in nodes if node.get("host"))),
        host_limits_gb={
            str(node["host"]): limit / 1e9
            for node in nodes
            if node.get("host") and isinstance(limit := node.get("memory_limit_bytes"), int)
        },
    )


def _failures(
    run: MeasuredRun, attempts: Sequence[AttemptRow], excluded: Mapping[int | None, Sequence[str]]
) -> Iterator[Failure]:
    ordered = sorted(attempts, key=lambda row: row.generation)
    for index, row in enumerate(ordered):
        if row.failure_class and row.failure_class not in _WELL:
            later = ordered[index + 1] if index + 1 < len(ordered) else None
            yield Failure(
                run=run.name,
                generation=row.generation,
                kind=row.failure_class.replace("_", " "),
                reason=clean(str(row.evidence.get("reason") or "")),
                then=_again(row, later, excluded.get(later.id, ())) if later else _in_the_end(run),
            )


def _again(failed: AttemptRow, later: AttemptRow, excluded: Sequence[str]) -> str:
    said = [f"attempt {later.generation} from step {later.start_step or 0:,}"]
    if later.micro_batch != failed.micro_batch:
        said.append(f"micro-batch {failed.micro_batch} → {later.micro_batch}")
    if later.changes != failed.changes:
        said.append(f"with {later.changes}")
    if excluded:
        said.append(f"without {' '.join(excluded)}")
    if later.config_hash != failed.config_hash:
        said.append("of a changed experiment")
    return ", ".join(said)


def _in_the_end(run: MeasuredRun) -> str:
    if run.state == RunState.FAILED:
        return f"no further try: {run.reason}" if run.reason else "no further try"
    return f"run is {run.state}"


def _each_gpu(conn: Connection, conditions: Sequence[Condition]) -> Iterator[tuple[str, GpuUse]]:
    sampled = [next((run for run in one.runs if run.gpus.names and run.attempt_id), None) for one in conditions]
    for run in [run for run in sampled if run][:MOST_RUNS]:
        used = queries.attempt_gpus(conn, run.attempt_id or 0)
        yield from ((run.name, gpu) for gpu in (used.gpus if used else ()))
