"""From a node's telemetry into the store: as in `ingest`, any number of callers, every line once.

Each node of an attempt has a file of its own, and `node_spool` counts the bytes of it that the store holds.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

from .. import schema
from ..queries import storable
from ..store import Store, insert_into
from ..upsert import insert_gpu_samples
from .gpu_lines import GpuBatch, parse
from .spool import (
    MAX_BYTES,
    IngestResult,
    Source,
    advance_side,
    endless_line,
    read_on,
    set_aside,
    side_source,
    tell,
    truncated,
)


def ingest_gpus(
    store: Store, attempt_id: int, node_rank: int, spool: Path, *, max_bytes: int = MAX_BYTES
) -> IngestResult:
    """Takes the next stretch of a node's telemetry into the store. Call it again until `caught_up`.

    Args:
        store: The store.
        attempt_id: The attempt.
        node_rank: The node of it that writes the file.
        spool: The file; one that does not exist counts as empty.
        max_bytes: How much to take at most, in one transaction.

    Raises:
        StoreUnreachable: The store did not answer; nothing was taken, and nothing is lost.
        LookupError: There is no such attempt.
        OSError: The file cannot be read.
    """
    source = side_source(store, attempt_id, node_rank)
    chunk, size = read_on(spool, source.offset, max_bytes)
    if size is not None and size < source.offset:
        return truncated(store, source, size, f"{spool.name}.truncated")
    batch = parse(chunk, source.offset)
    if not batch.length and len(chunk) >= max_bytes:
        batch = GpuBatch(bad=[endless_line(chunk, source.offset)], lines=1, length=len(chunk))
    caught_up = len(chunk) < max_bytes
    if not batch.length:
        return IngestResult(0, source.offset, 0, 0, caught_up)
    with store.write() as conn:
        if not advance_side(conn, source, node_rank, batch.length):
            return IngestResult(0, source.offset, 0, 0, caught_up=False, stale=True)
        _insert(conn, source, node_rank, batch)
        set_aside(conn, source, batch.bad, spool)
    return IngestResult(batch.lines, source.offset + batch.length, len(batch.bad), len(batch.events), caught_up)


def _insert(conn: Connection, source: Source, node_rank: int, batch: GpuBatch) -> None:
    key = {"attempt_id": source.attempt_id, "node_rank": node_rank}
    if batch.devices:
        rows = [{**key, "gpu": gpu, **_storable(found)} for gpu, found in batch.devices.items()]
        conn.execute(insert_into(conn, schema.gpu).values(rows).on_conflict_do_nothing())
    insert_gpu_samples(conn, [(source.attempt_id, node_rank, *row) for row in batch.samples.values()])
    for event in batch.events:
        message = str(event.data.pop("message", ""))
        data = {**event.data, "node_rank": node_rank}
        tell(conn, source, f"gpu.{event.name}", message, data, event.ts_s)


def _storable(found: dict[str, object]) -> dict[str, object]:
    return {name: storable(value) if isinstance(value, str) else value for name, value in found.items()}
