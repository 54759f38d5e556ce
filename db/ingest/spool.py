"""What every spool has in common: reading on from an offset, and setting aside what cannot be taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, and_, func, select, update

from .. import schema
from ..queries import add_event
from ..store import Store, insert_into
from .lines import BadLine

MAX_BYTES: Final = 8 << 20

FORWARDERS: Final = -1
"""Stands for a node in `node_spool`: what the processes say that forward metrics to other tools."""

_NAMED_BAD_LINES: Final = 20  # a batch; a spool full of rubbish must not become a table full of it


@dataclass(frozen=True)
class IngestResult:
    """What one call did.

    Attributes:
        lines: Complete lines taken from the spool, the bad ones among them.
        new_offset: Bytes of the spool that the store now holds.
        rejected: Lines set aside with an event.
        events: Lines that became events.
        caught_up: No complete line was left when the spool was read.
        stale: Another caller took these lines first; nothing was written.
    """

    lines: int
    new_offset: int
    rejected: int
    events: int
    caught_up: bool
    stale: bool = False


@dataclass(frozen=True)
class Source:
    """Whose spool it is, and how many of its bytes the store holds."""

    campaign_id: int
    run_id: int
    generation: int
    attempt_id: int
    offset: int


def read_on(spool: Path, offset: int, max_bytes: int) -> tuple[bytes, int | None]:
    """The bytes from an offset on, and the size of the whole file, None when there is no file."""
    try:
        with spool.open("rb", buffering=0) as file:
            size = file.seek(0, 2)
            file.seek(offset)
            return file.read(max_bytes) or b"", size
    except FileNotFoundError:
        return b"", None


def endless_line(chunk: bytes, offset: int) -> BadLine:
    """What fills a whole chunk without an end of line: wait for it, and the spool would never move again."""
    return BadLine(offset, len(chunk), "a line without end", chunk[:100].decode(errors="replace"))


def side_source(store: Store, attempt_id: int, node_rank: int) -> Source:
    """How far a file beside the metrics was read; `node_spool` counts its bytes.

    Args:
        store: The store.
        attempt_id: The attempt.
        node_rank: The node whose telemetry it is, or `FORWARDERS`.

    Raises:
        LookupError: There is no such attempt.
    """
    attempt, run, read = schema.attempt.c, schema.run.c, schema.node_spool.c
    of_node = and_(read.attempt_id == attempt.id, read.node_rank == node_rank)
    joined = schema.attempt.join(schema.run, run.id == attempt.run_id).outerjoin(schema.node_spool, of_node)
    columns = (run.campaign_id, run.id, attempt.generation, attempt.id, func.coalesce(read.spool_offset, 0))
    with store.read() as conn:
        row = conn.execute(select(*columns).select_from(joined).where(attempt.id == attempt_id)).first()
    if row is None:
        raise LookupError(f"no attempt {attempt_id}")
    return Source(*row)


def advance_side(conn: Connection, source: Source, node_rank: int, length: int) -> bool:
    """Moves that offset on and takes the row's lock; False when somebody else moved it."""
    row = schema.node_spool.c
    if not source.offset:  # a second caller waits here for the first one's row
        first = {"attempt_id": source.attempt_id, "node_rank": node_rank, "spool_offset": 0}
        conn.execute(insert_into(conn, schema.node_spool).values(first).on_conflict_do_nothing())
    unmoved = update(schema.node_spool).where(
        row.attempt_id == source.attempt_id, row.node_rank == node_rank, row.spool_offset == source.offset
    )
    return conn.execute(unmoved.values(spool_offset=source.offset + length)).rowcount == 1


def set_aside(conn: Connection, source: Source, bad: Sequence[BadLine], spool: Path) -> None:
    """One event for each bad line, and one for all that are too many to name."""
    for line in bad[:_NAMED_BAD_LINES]:
        data = {"offset": line.offset, "bytes": line.length, "text": line.prefix}
        tell(conn, source, "spool.corrupt", f"{line.why} at byte {line.offset} of {spool.name}", data)
    if rest := bad[_NAMED_BAD_LINES:]:
        data = {"offset": rest[0].offset, "last_offset": rest[-1].offset, "lines": len(rest)}
        tell(conn, source, "spool.corrupt", f"{len(rest)} more bad lines of {spool.name}", data)


def truncated(store: Store, source: Source, size: int, kind: str = "spool.truncated") -> IngestResult:
    """Tells once of a spool that shrank; what was taken stays.

    It is never read again from its beginning: a shared file system may show a stale size for a while.
    """
    row = schema.events.c
    with store.write() as conn:
        told = select(row.id).where(row.run_id == source.run_id, row.attempt_id == source.attempt_id, row.kind == kind)
        if conn.execute(told.limit(1)).first() is None:
            message = f"the spool has {size} bytes, {source.offset} were read before"
            tell(conn, source, kind, message, {"size": size, "offset": source.offset})
    return IngestResult(0, source.offset, 0, 0, caught_up=True)


def tell(
    conn: Connection, source: Source, kind: str, message: str, data: Mapping[str, Any], ts_s: float | None = None
) -> None:
    """Records an event of the attempt."""
    add_event(
        conn,
        source.campaign_id,
        kind,
        message,
        run_id=source.run_id,
        attempt_id=source.attempt_id,
        data=data,
        ts_s=ts_s,
    )
