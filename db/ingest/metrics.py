"""The metrics of an attempt: steps, and other events of its script. Their offset is `attempt.spool_offset`."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Select, case, func, select, update

from dscampaign.db import schema
from dscampaign.db.queries import observe_memory, record_checkpoint
from dscampaign.db.records import (
    STEPS_BEYOND,
    STEPS_REPEATED,
    STEPS_RESTARTED,
    CheckpointRow,
    MemoryObservation,
    memory_observation_key,
)
from dscampaign.db.storable import MAX_INT, is_whole

from .lines import MetricBatch, StepOrder, highest_step, is_number, parse
from .reader import read_on
from .spool import MAX_BYTES, Source, Spool
from .upsert import insert_extras, insert_steps, upsert_latest

METRICS: Final = -2  # the number of this spool; it has no row in `node_spool`
_MEMORY_FIGURES: Final = ("after_init_gb", "per_sample_gb", "peak_allocated_gb", "peak_reserved_gb", "usable_gb")


@dataclass
class _Part(MetricBatch):
    """The rows of a stretch, and which of them count."""

    begin: int = 0  # its offset in the spool
    newest: dict[str, float] = field(default_factory=dict)  # the last value of each name among its newest steps
    # the order of the lines up to its end, if it was needed; then only rows that count are left
    order: StepOrder | None = None
    sifted: bool = False
    begins: bool = False  # whether it has the attempt's first steps


_WHY: Final = {
    STEPS_RESTARTED: (
        "step {step:,} was reported again after step {newest:,}; steps that were passed before are not taken again:"
        " let the script count steps over all epochs"
    ),
    STEPS_BEYOND: (
        "step {step:,} is far beyond the target, {target:,}, and such lines are not taken: let the script report"
        " completed optimizer steps"
    ),
}


class MetricSpool(Spool[_Part]):
    """The reports of an attempt's script."""

    stored_offset = schema.attempt.c.spool_offset

    def __init__(self, attempt_id: int, path: Path) -> None:
        super().__init__(attempt_id, path, METRICS)
        self.truncated_kind = "spool.truncated"

    def parse(self, chunk: bytes, offset: int) -> _Part:
        """Steps and events."""
        return _Part(**vars(parse(chunk, offset)), begin=offset)

    def advance(self, conn: Connection, source: Source, batch: _Part) -> bool:
        """Move the offset and the attempt's steps on, and lock its row; return False if somebody else was first."""
        row = schema.attempt.c
        values: dict[str, Any] = {}
        self._sift(conn, batch)
        if batch.steps:
            first, last = next(iter(batch.steps)), max(batch.steps)
            values["start_step"] = func.coalesce(row.start_step, max(first - 1, 0))
            values["last_step"] = case((row.last_step > last, row.last_step), else_=last)
        return self.move(conn, source, source.offset + batch.length, **values)

    def move(self, conn: Connection, source: Source, offset: int, **values: Any) -> bool:
        """Set the offset, which is the attempt's own, with other columns; return False if somebody else moved it."""
        row = schema.attempt.c
        unmoved = update(schema.attempt).where(row.id == source.attempt_id, row.spool_offset == source.offset)
        return conn.execute(unmoved.values(spool_offset=offset, **values)).rowcount == 1

    def insert(self, conn: Connection, source: Source, batch: _Part) -> None:
        """Insert rows for the steps and an event for each other line, and act on events of the built-in trainer."""
        self._sift(conn, batch)
        if batch.order:
            self._tell(conn, source, batch.order)
        if batch.begins and batch.steps:
            _compare_with_checkpoints(conn, source, next(iter(batch.steps)))
        if batch.steps:
            insert_steps(conn, source.attempt_id, batch.steps)
            insert_extras(conn, source.attempt_id, batch.steps)
            upsert_latest(conn, (source.run_id, source.attempt_id, source.generation), max(batch.steps), batch.newest)
        for event in batch.events:
            source.tell(conn, f"script.{event.name}", event.message, event.facts, event.ts_s)
            if know := _MEANINGS.get(event.name):
                know(conn, source, event.data)

    def _sift(self, conn: Connection, batch: _Part) -> None:
        """Keep the rows that count. Steps that only go on need no look at the lines before them."""
        if batch.sifted or not batch.rows:
            return
        batch.sifted = True
        attempt, run = schema.attempt.c, schema.run.c
        query = select(attempt.last_step, run.target_step).join_from(
            schema.attempt, schema.run, run.id == attempt.run_id
        )
        last, target = conn.execute(query.where(attempt.id == self.attempt_id)).one()
        batch.begins = last is None
        if target is None:
            told = (event.data.get("steps") for event in batch.events if event.name == "target")
            target = next((steps for steps in told if is_whole(steps, 1)), None)
        steps = [row["step"] for row in batch.rows]
        goes_on = (
            last is None
            or steps[0] > last
            or (steps[0] == last and not conn.execute(self._told(STEPS_RESTARTED)).first())
        )
        if goes_on and steps[-1] <= highest_step(target) and all(map(operator.le, steps, steps[1:])):
            for row in batch.rows:
                batch.newest |= row
            return
        batch.order = order = StepOrder(target)
        for row in self._rows_before(batch.begin):
            order.take(row)
        rows, batch.rows = batch.rows, []
        for row in rows:
            if order.take(row):
                batch.rows.append(row)
                if row["step"] == order.newest:
                    batch.newest |= row

    def _rows_before(self, end: int) -> Iterator[dict[str, float]]:
        at = 0
        while at < end and (stretch := read_on(self.path, at, min(MAX_BYTES, end - at))):
            lines = stretch.chunk if stretch.endless else stretch.chunk[: stretch.chunk.rfind(b"\n") + 1]
            yield from parse(lines, at).rows
            if not (length := stretch.skipped + len(lines)):
                return
            at += length

    def _tell(self, conn: Connection, source: Source, order: StepOrder) -> None:
        kinds = set(conn.execute(self._told().with_only_columns(schema.events.c.kind)).scalars()) if order.found else ()
        for kind, data in order.found.items():
            if kind not in kinds:
                source.tell(conn, kind, _WHY[kind].format(**data), data)

    def _told(self, *kinds: str) -> Select[Any]:
        row = schema.events.c
        return select(row.id).where(row.attempt_id == self.attempt_id, row.kind.in_(kinds or tuple(_WHY)))


def _compare_with_checkpoints(conn: Connection, source: Source, first: int) -> None:
    """Report steps that an attempt repeats though an earlier attempt of its experiment has announced their end."""
    attempt, saved = schema.attempt.c, schema.checkpoint.c
    own = select(attempt.config_hash).where(attempt.id == source.attempt_id).scalar_subquery()
    earlier = select(attempt.id).where(attempt.run_id == source.run_id, attempt.config_hash == own)
    query = select(func.max(saved.step)).where(
        saved.run_id == source.run_id, saved.generation < source.generation, saved.attempt_id.in_(earlier)
    )
    newest = conn.execute(query).scalar()
    if newest is not None and first <= newest:
        message = (
            f"it begins at step {first:,} though an earlier attempt announced a checkpoint of step {newest:,}:"
            f" the script did not resume from it, and makes {newest - first + 1:,} steps again"
        )
        source.tell(conn, STEPS_REPEATED, message, {"step": first, "checkpoint": newest})


def _know_target(conn: Connection, source: Source, data: Mapping[str, Any]) -> None:
    steps = data.get("steps")
    if is_whole(steps, 1):
        run, attempt = schema.run.c, schema.attempt.c
        told_by = select(attempt.config_hash).where(attempt.id == source.attempt_id).scalar_subquery()
        unknown = update(schema.run).where(
            run.id == source.run_id, run.target_step.is_(None), run.config_hash == told_by
        )
        conn.execute(unknown.values(target_step=steps))


def _know_checkpoint(conn: Connection, source: Source, data: Mapping[str, Any]) -> None:
    """A checkpoint of the built-in trainer; the user's own script may use the name for another thing."""
    step, path, size_bytes = data.get("step"), data.get("path"), data.get("size_bytes")
    if is_whole(step) and isinstance(path, str) and is_whole(size_bytes):
        saved = CheckpointRow(source.run_id, source.attempt_id, source.generation, step, path, size_bytes)
        record_checkpoint(conn, saved)


def _know_memory(conn: Connection, source: Source, data: Mapping[str, Any]) -> None:
    """Add the memory that the attempt's ranks report to the memory ledger."""
    row = schema.attempt.c
    query = select(row.memory_key, row.micro_batch).where(row.id == source.attempt_id)
    memory_key, micro_batch = conn.execute(query).one()
    micro_batch = data.get("micro_batch", micro_batch)
    if memory_key is None or not is_whole(micro_batch, 1, MAX_INT):
        return
    figures = {name: value for name in _MEMORY_FIGURES if is_number(value := data.get(name)) and value > 0}
    if figures:
        device, torch = (text if isinstance(text := data.get(name), str) else "" for name in ("device", "torch"))
        key = memory_observation_key(memory_key, device, torch)
        observe_memory(conn, MemoryObservation(key, source.attempt_id, micro_batch, oom=False, **figures))


_MEANINGS: Final = {"target": _know_target, "checkpoint": _know_checkpoint, "memory": _know_memory}
"""Effects of the built-in trainer's events on the store."""
