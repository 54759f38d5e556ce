"""From a spool into the store: any number of callers, every line once.

The bytes of a spool that the store holds are counted in `attempt.spool_offset`. One transaction moves that offset, if
it still is what was read, and inserts what the bytes between say: whoever comes second finds the offset moved and
inserts nothing, and a crash leaves either all of it or none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, case, func, select, update

from .. import schema
from ..queries import observe_memory, record_checkpoint, storable
from ..records import Checkpoint, MemoryObservation, memory_observation_key
from ..store import Store
from ..upsert import insert_extras, insert_steps, upsert_latest
from .lines import Batch, parse
from .spool import MAX_BYTES, IngestResult, Source, endless_line, read_on, set_aside, tell, truncated

_MEMORY_FIGURES: Final = ("after_init_gb", "per_sample_gb", "peak_allocated_gb", "peak_reserved_gb", "usable_gb")


def ingest(store: Store, attempt_id: int, spool: Path, *, max_bytes: int = MAX_BYTES) -> IngestResult:
    """Takes the next stretch of a spool into the store. Call it again until `caught_up`.

    Args:
        store: The store.
        attempt_id: The attempt that writes the spool.
        spool: The file; one that does not exist yet counts as empty.
        max_bytes: How much to take at most, in one transaction.

    Raises:
        StoreUnreachable: The store did not answer; nothing was taken, and nothing is lost.
        LookupError: There is no such attempt.
        OSError: The spool cannot be read.
    """
    source = _source(store, attempt_id)
    chunk, size = read_on(spool, source.offset, max_bytes)
    if size is not None and size < source.offset:
        return truncated(store, source, size)
    batch = _parse(chunk, source.offset, max_bytes)
    offset = source.offset + batch.length
    # Torn means that the file ends in mid-line: nothing more to take before the rest is there.
    caught_up = len(chunk) < max_bytes
    if not batch.length:
        return IngestResult(0, offset, 0, 0, caught_up)
    with store.write() as conn:
        if not _advance(conn, source, batch):
            return IngestResult(0, source.offset, 0, 0, caught_up=False, stale=True)
        _insert(conn, source, batch, spool)
    return IngestResult(batch.lines, offset, len(batch.bad), len(batch.events), caught_up)


def _source(store: Store, attempt_id: int) -> Source:
    attempt, run = schema.attempt.c, schema.run.c
    query = select(run.campaign_id, run.id, attempt.generation, attempt.id, attempt.spool_offset)
    with store.read() as conn:
        row = conn.execute(query.join(schema.run, run.id == attempt.run_id).where(attempt.id == attempt_id)).first()
    if row is None:
        raise LookupError(f"no attempt {attempt_id}")
    return Source(*row)


def _parse(chunk: bytes, offset: int, max_bytes: int) -> Batch:
    batch = parse(chunk, offset)
    if batch.length or len(chunk) < max_bytes:
        return batch
    return Batch(bad=[endless_line(chunk, offset)], lines=1, length=len(chunk))


def _advance(conn: Connection, source: Source, batch: Batch) -> bool:
    """Moves the offset on and takes the attempt's row lock; False when somebody else moved it."""
    row = schema.attempt.c
    values: dict[str, Any] = {"spool_offset": source.offset + batch.length}
    if batch.steps:
        first, last = min(batch.steps), max(batch.steps)
        values["start_step"] = func.coalesce(row.start_step, max(first - 1, 0))
        values["last_step"] = case((row.last_step > last, row.last_step), else_=last)
    unmoved = update(schema.attempt).where(row.id == source.attempt_id, row.spool_offset == source.offset)
    return conn.execute(unmoved.values(values)).rowcount == 1


def _insert(conn: Connection, source: Source, batch: Batch, spool: Path) -> None:
    if batch.steps:
        insert_steps(conn, source.attempt_id, batch.steps)
        insert_extras(conn, source.attempt_id, batch.steps)
        upsert_latest(conn, (source.run_id, source.attempt_id, source.generation), batch.steps)
    for event in batch.events:
        tell(conn, source, f"script.{event.name}", "", event.data, event.ts_s)
        if event.name == "target":
            _know_target(conn, source, event.data.get("steps"))
        if event.name == "checkpoint":
            _know_checkpoint(conn, source, event.data)
        if event.name == "memory":
            _know_memory(conn, source, event.data)
    set_aside(conn, source, batch.bad, spool)


def _know_target(conn: Connection, source: Source, steps: object) -> None:
    """A run of so many epochs learns from its script how many steps that is."""
    if isinstance(steps, int | float) and steps >= 1:
        run = schema.run.c
        unknown = update(schema.run).where(run.id == source.run_id, run.target_step.is_(None))
        conn.execute(unknown.values(target_step=int(steps)))


def _know_checkpoint(conn: Connection, source: Source, data: Mapping[str, Any]) -> None:
    """A checkpoint of the built-in trainer; a script of one's own may use the word for something else."""
    step, path, size_bytes = data.get("step"), data.get("path"), data.get("size_bytes")
    if isinstance(step, int) and isinstance(path, str) and isinstance(size_bytes, int):
        saved = Checkpoint(source.run_id, source.attempt_id, source.generation, step, storable(path), size_bytes)
        record_checkpoint(conn, saved)


def _know_memory(conn: Connection, source: Source, data: Mapping[str, Any]) -> None:
    """What the attempt's ranks say of their memory, for the batch ledger: see docs/architecture.md for the names."""
    row = schema.attempt.c
    query = select(row.memory_key, row.micro_batch).where(row.id == source.attempt_id)
    memory_key, micro_batch = conn.execute(query).one()
    micro_batch = data.get("micro_batch", micro_batch)
    if memory_key is None or not isinstance(micro_batch, int) or micro_batch < 1:
        return
    given = {name: value for name in _MEMORY_FIGURES if _is_size(value := data.get(name))}
    if given:
        where = (storable(str(data.get(name, ""))) for name in ("device", "torch"))
        key = memory_observation_key(memory_key, *where)
        observe_memory(conn, MemoryObservation(key, source.attempt_id, micro_batch, oom=False, **given))


def _is_size(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
