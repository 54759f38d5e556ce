"""What became of a run's metrics in other tools, from the file of an attempt's forwarders into the store.

As in `ingest`, any number of callers, every line once. A line is one event, kept as `forward.<event>`.
"""

from __future__ import annotations

from pathlib import Path

from ..store import Store
from .lines import parse
from .spool import FORWARDERS, IngestResult, advance_side, read_on, set_aside, side_source, tell, truncated

MAX_BYTES = 1 << 20
"""More than forwarders ever say."""


def ingest_forwards(store: Store, attempt_id: int, spool: Path) -> IngestResult:
    """Takes what the forwarders of an attempt have said since the last call.

    Args:
        store: The store.
        attempt_id: The attempt.
        spool: The file; one that does not exist counts as empty.

    Raises:
        StoreUnreachable: The store did not answer; nothing was taken, and nothing is lost.
        LookupError: There is no such attempt.
        OSError: The file cannot be read.
    """
    source = side_source(store, attempt_id, FORWARDERS)
    chunk, size = read_on(spool, source.offset, MAX_BYTES)
    if size is not None and size < source.offset:
        return truncated(store, source, size, f"{spool.name}.truncated")
    batch = parse(chunk, source.offset)
    if not batch.length:
        return IngestResult(0, source.offset, 0, 0, caught_up=True)
    with store.write() as conn:
        if not advance_side(conn, source, FORWARDERS, batch.length):
            return IngestResult(0, source.offset, 0, 0, caught_up=False, stale=True)
        for event in batch.events:
            message = str(event.data.pop("message", ""))
            tell(conn, source, f"forward.{event.name}", message, event.data, event.ts_s)
        set_aside(conn, source, batch.bad, spool)
    caught_up = len(chunk) < MAX_BYTES
    return IngestResult(batch.lines, source.offset + batch.length, len(batch.bad), len(batch.events), caught_up)
