"""The metrics of an attempt: steps, and what its script says besides.

The bytes of this spool that the store holds are counted with the attempt itself, in `attempt.spool_offset`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Select, case, func, select, update

from .. import schema
from ..queries import observe_memory, record_checkpoint
from ..records import CheckpointRow, MemoryObservation, memory_observation_key
from ..storable import MAX_INT, MAX_WHOLE, is_whole
from .lines import MetricBatch, parse
from .spool import Source, Spool
from .upsert import insert_extras, insert_steps, upsert_latest

METRICS: Final = -2
"""The number of this spool; it has no row in `node_spool`."""

_MEMORY_FIGURES: Final = ("after_init_gb", "per_sample_gb", "peak_allocated_gb", "peak_reserved_gb", "usable_gb")


class MetricSpool(Spool[MetricBatch]):
    """What the script of an attempt reports."""

    stored_offset = schema.attempt.c.spool_offset

    def __init__(self, attempt_id: int, path: Path) -> None:
        super().__init__(attempt_id, path, METRICS)
        self.truncated_kind = "spool.truncated"

    def parse(self, chunk: bytes, offset: int) -> MetricBatch:
        """Steps and events."""
        return parse(chunk, offset)

    def advance(self, conn: Connection, source: Source, batch: MetricBatch) -> bool:
        """Move the offset and the attempt's steps on, and lock its row; return False if somebody else was first."""
        row = schema.attempt.c
        values: dict[str, Any] = {}
        if batch.steps:
            first, last = min(batch.steps), max(batch.steps)
            values["start_step"] = func.coalesce(row.start_step, max(first - 1, 0))
            values["last_step"] = case((row.last_step > last, row.last_step), else_=last)
        return self.move(conn, source, source.offset + batch.length, **values)

    def move(self, conn: Connection, source: Source, offset: int, **values: Any) -> bool:
        """Set the offset, which is the attempt's own, with other columns; return False if somebody else moved it."""
        row = schema.attempt.c
        unmoved = update(schema.attempt).where(row.id == source.attempt_id, row.spool_offset == source.offset)
        return conn.execute(unmoved.values(spool_offset=offset, **values)).rowcount == 1

    def newest_row(self, batch: MetricBatch) -> Select[Any] | None:
        """Return a query for the row of the last step."""
        row = schema.step_metric.c
        return (
            select(row.step).where(row.attempt_id == self.attempt_id, row.step == next(reversed(batch.steps)))
            if batch.steps
            else None
        )

    def insert(self, conn: Connection, source: Source, batch: MetricBatch) -> None:
        """Rows for the steps; an event for each other line, and what the built-in trainer's lines mean."""
        if batch.steps:
            insert_steps(conn, source.attempt_id, batch.steps)
            insert_extras(conn, source.attempt_id, batch.steps)
            upsert_latest(conn, (source.run_id, source.attempt_id, source.generation), batch.steps)
        for event in batch.events:
            source.tell(conn, f"script.{event.name}", event.message, event.facts, event.ts_s)
            if know := _MEANINGS.get(event.name):
                know(conn, source, event.data)


def _know_target(conn: Connection, source: Source, data: Mapping[str, Any]) -> None:
    """A run of so many epochs learns from its script how many steps that is, not from that of an earlier experiment."""
    steps = data.get("steps")
    if is_whole(steps, 1):
        run, attempt = schema.run.c, schema.attempt.c
        told_by = select(attempt.config_hash).where(attempt.id == source.attempt_id).scalar_subquery()
        unknown = update(schema.run).where(
            run.id == source.run_id, run.target_step.is_(None), run.config_hash == told_by
        )
        conn.execute(unknown.values(target_step=steps))


def _know_checkpoint(conn: Connection, source: Source, data: Mapping[str, Any]) -> None:
    """A checkpoint of the built-in trainer; a script of one's own may use the word for something else."""
    step, path, size_bytes = data.get("step"), data.get("path"), data.get("size_bytes")
    if is_whole(step) and isinstance(path, str) and is_whole(size_bytes):
        saved = CheckpointRow(source.run_id, source.attempt_id, source.generation, step, path, size_bytes)
        record_checkpoint(conn, saved)


def _know_memory(conn: Connection, source: Source, data: Mapping[str, Any]) -> None:
    """What the attempt's ranks say of their memory, for the memory ledger: see docs/architecture.md for the names."""
    row = schema.attempt.c
    query = select(row.memory_key, row.micro_batch).where(row.id == source.attempt_id)
    memory_key, micro_batch = conn.execute(query).one()
    micro_batch = data.get("micro_batch", micro_batch)
    if memory_key is None or not is_whole(micro_batch, 1, MAX_INT):
        return
    given = {name: value for name in _MEMORY_FIGURES if _is_size(value := data.get(name))}
    if given:
        device, torch = (said if isinstance(said := data.get(name), str) else "" for name in ("device", "torch"))
        key = memory_observation_key(memory_key, device, torch)
        observe_memory(conn, MemoryObservation(key, source.attempt_id, micro_batch, oom=False, **given))


def _is_size(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_WHOLE


_MEANINGS: Final = {
    "target": _know_target,
    "checkpoint": _know_checkpoint,
    "memory": _know_memory,
}
"""What the store learns from the built-in trainer's events."""
