"""Takes spools into the store: any number of callers, every line once.

One transaction moves the spool's offset in the store, if it has not moved, and inserts the lines between: a second
caller inserts nothing, and a crash leaves all of it or none. An offset that cannot be right, because the file is
shorter or no line begins there, is set back to 0: lines that the store holds change nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Final, Generic

from sqlalchemy import ColumnElement, Connection, Select, and_, func, select, update

from dscampaign.db import schema
from dscampaign.db.errors import first_line
from dscampaign.db.queries import add_event
from dscampaign.db.states import ACTIVE_ATTEMPT
from dscampaign.db.storable import MAX_TEXT, text, to_json
from dscampaign.db.store import Store, database_now, insert_into, refusal

from .lines import PREFIX, B, BadLine
from .reader import read_on, within_line

MAX_BYTES: Final = 8 << 20
STALE_S: Final = 120.0
"""For how long a shared file system may show a file as shorter than an agent on another machine has read it."""

_NAMED_BAD_LINES: Final = 20  # a batch; a spool full of rubbish must not become a table full of it


@dataclass(frozen=True)
class IngestResult:
    """The result of one call."""

    lines: int  # complete lines taken from the spool, bad ones included
    new_offset: int  # bytes of the spool that the store now holds
    rejected: int  # lines set aside with an event
    events: int  # lines that became events
    caught_up: bool  # no complete line was left when the spool was read
    stale: bool = False  # another caller took these lines first; nothing was written


@dataclass(frozen=True)
class Source:
    """The attempt of a spool, and how many of its bytes the store holds."""

    campaign_id: int
    run_id: int
    generation: int
    attempt_id: int
    offset: int
    # of a spool that is read again, its events in the store: each as `_identities` has it
    known: frozenset[tuple[object, ...]] = frozenset()

    def tell(
        self, conn: Connection, kind: str, message: str, data: Mapping[str, Any], ts_s: float | None = None
    ) -> None:
        """Record an event of the attempt, unless it is known."""
        if self.known and _identities(kind, message, data, ts_s)[ts_s is not None] in self.known:
            return
        ids = {"run_id": self.run_id, "attempt_id": self.attempt_id}
        add_event(conn, self.campaign_id, kind, message, **ids, data=data, ts_s=ts_s)


class Spool(ABC, Generic[B]):
    """A file that an attempt appends lines to, or that does not exist yet. A subclass is one sink.

    `number` is the key of its offset in `node_spool`: the rank of the node that writes it, or a negative number.
    """

    stored_offset: ClassVar[ColumnElement[int]] = func.coalesce(schema.node_spool.c.spool_offset, 0)

    def __init__(self, attempt_id: int, path: Path, number: int) -> None:
        self.attempt_id, self.path, self.number = attempt_id, path, number
        self.truncated_kind = f"{path.name}.truncated"  # of the event that tells of a file that shrank

    @abstractmethod
    def parse(self, chunk: bytes, offset: int) -> B:
        """Return the complete lines of a stretch that begins at an offset."""

    @abstractmethod
    def insert(self, conn: Connection, source: Source, batch: B) -> None:
        """Insert the lines into their tables."""

    def source(self, store: Store) -> Source:
        """Return the source; raises LookupError if the attempt does not exist."""
        attempt, run, read = schema.attempt.c, schema.run.c, schema.node_spool.c
        of_node = and_(read.attempt_id == attempt.id, read.node_rank == self.number)
        joined = schema.attempt.join(schema.run, run.id == attempt.run_id).outerjoin(schema.node_spool, of_node)
        columns = (run.campaign_id, run.id, attempt.generation, attempt.id, self.stored_offset)
        with store.read() as conn:
            row = conn.execute(select(*columns).select_from(joined).where(attempt.id == self.attempt_id)).first()
        if row is None:
            raise LookupError(f"no attempt {self.attempt_id}")
        return Source(*row)

    def advance(self, conn: Connection, source: Source, batch: B) -> bool:
        """Move the offset on and lock its row; return False if somebody else moved it."""
        if not source.offset:  # a second caller waits here for the first one's row
            first = {"attempt_id": self.attempt_id, "node_rank": self.number, "spool_offset": 0}
            conn.execute(insert_into(conn, schema.node_spool).values(first).on_conflict_do_nothing())
        return self.move(conn, source, source.offset + batch.length)

    def move(self, conn: Connection, source: Source, offset: int) -> bool:
        """Set the offset; return False if somebody else moved it."""
        row = schema.node_spool.c
        unmoved = update(schema.node_spool).where(
            row.attempt_id == self.attempt_id, row.node_rank == self.number, row.spool_offset == source.offset
        )
        return conn.execute(unmoved.values(spool_offset=offset)).rowcount == 1


def ingest(
    store: Store, spool: Spool[Any], source: Source | None = None, /, *, max_bytes: int = MAX_BYTES
) -> IngestResult:
    """Take the next stretch of a spool into the store, from its known or stored position, until `caught_up`.

    Raises StoreUnreachable, and nothing is lost; LookupError: the attempt does not exist; OSError: the spool is
    unreadable.
    """
    source = source or spool.source(store)
    nothing = IngestResult(0, source.offset, 0, 0, caught_up=True)
    stretch = read_on(spool.path, source.offset, max_bytes)
    if stretch is None:
        return nothing
    if stretch.size < source.offset or (stretch.skipped and within_line(spool.path, source.offset, max_bytes)):
        return _begin_again(store, spool, source, stretch.size)
    begin, lines = source.offset + stretch.skipped, stretch.chunk[: stretch.chunk.rfind(b"\n") + 1]
    batch = spool.parse(lines, begin)
    if stretch.endless:  # wait for this line's end, and the spool would never move again
        prefix = stretch.chunk[:PREFIX].decode(errors="replace")
        batch.bad.append(BadLine(begin, len(stretch.chunk), "a line without end", prefix))
        batch.lines, batch.length = 1, len(stretch.chunk)
    batch.length += stretch.skipped
    # What is left may end in mid-line: nothing more to take before the rest of that line is there.
    caught_up = not stretch.more
    if not batch.length:
        return replace(nothing, caught_up=caught_up)
    with store.write() as conn:
        if not spool.advance(conn, source, batch):
            return replace(nothing, caught_up=False, stale=True)
        if batch.events:
            source = _knowing(conn, spool, source)
        bad = _insert(conn, spool, source, batch, lines, begin)
        if bad:
            _set_aside(conn, _knowing(conn, spool, source), bad, spool.path)
    return IngestResult(batch.lines, source.offset + batch.length, len(bad), len(batch.events), caught_up)


def drain(
    store: Store, spool: Spool[Any], source: Source | None, renew_lease: Callable[[], None], stretches: float = inf
) -> bool:
    """Take new lines of a spool, arguments as of `drain_attempt`; return whether some were left."""
    renew_lease()
    stretch = read_on(spool.path, 0, 0)
    left = stretch is not None and (source is None or stretch.size != source.offset)
    while left and stretches > 0:
        renew_lease()
        result = ingest(store, spool, source)
        stretches -= not result.stale
        # Stale by what was seen long ago: another caller may have ended since, and left the rest.
        left = not result.caught_up and (source is not None or not result.stale)
        source = None
    return left


def _insert(conn: Connection, spool: Spool[B], source: Source, batch: B, lines: bytes, offset: int) -> list[BadLine]:
    """If the store refuses some of them they are halved until only the refused line is left out."""
    error = refusal(conn, partial(spool.insert, conn, source, batch))
    if error is None:
        return batch.bad
    middle = _middle(lines)
    if not middle:
        prefix = lines.decode(errors="replace")[:PREFIX]
        return [BadLine(offset, len(lines), f"the store does not take it ({first_line(error)})", prefix)]
    parts = (lines[:middle], offset), (lines[middle:], offset + middle)
    return [bad for part, at in parts for bad in _insert(conn, spool, source, spool.parse(part, at), part, at)]


def _middle(lines: bytes) -> int:
    half = len(lines) // 2
    return lines.find(b"\n", half, len(lines) - 1) + 1 or lines.rfind(b"\n", 0, half) + 1


def _set_aside(conn: Connection, source: Source, bad: Sequence[BadLine], path: Path) -> None:
    for line in bad[:_NAMED_BAD_LINES]:
        data = {"offset": line.offset, "bytes": line.length, "text": line.prefix}
        source.tell(conn, "spool.corrupt", f"{line.why} at byte {line.offset} of {path.name}", data)
    if rest := bad[_NAMED_BAD_LINES:]:
        data = {"offset": rest[0].offset, "last_offset": rest[-1].offset, "lines": len(rest)}
        source.tell(conn, "spool.corrupt", f"{len(rest)} more bad lines of {path.name}", data)


def _begin_again(store: Store, spool: Spool[Any], source: Source, size: int) -> IngestResult:
    # While the attempt is active, agents may push lines from its node that a shared file system does not show here yet.
    # Then wait until the file is still shorter than it was `STALE_S` ago. SQLite has one reader, which saw all of it.
    row, attempt = schema.events.c, schema.attempt.c
    with store.write() as conn:
        last = conn.execute(_told(spool, source).order_by(row.id.desc()).limit(1)).first()
        if last is None:
            message = f"the spool has {size} bytes, {source.offset} were read before; it is read again"
            source.tell(conn, spool.truncated_kind, message, {"size": size, "offset": source.offset})
        state = conn.execute(select(attempt.state).where(attempt.id == source.attempt_id)).scalar()
        recent = last is None or 0 <= database_now(conn) - last.ts_s < STALE_S or size >= last.data.get("offset", 0)
        if recent and size < source.offset and state in ACTIVE_ATTEMPT and not store.is_sqlite:
            return IngestResult(0, source.offset, 0, 0, caught_up=True)
        stale = not spool.move(conn, source, 0)
    return IngestResult(0, 0, 0, 0, caught_up=False, stale=stale)


def _told(spool: Spool[Any], source: Source) -> Select[Any]:
    row = schema.events.c
    return select(row.ts_s, row.data).where(
        row.run_id == source.run_id, row.attempt_id == source.attempt_id, row.kind == spool.truncated_kind
    )


def _knowing(conn: Connection, spool: Spool[Any], source: Source) -> Source:
    if conn.execute(_told(spool, source).limit(1)).first() is None:
        return source
    row = schema.events.c
    query = select(row.kind, row.message, row.data, row.ts_s).where(
        row.run_id == source.run_id, row.attempt_id == source.attempt_id
    )
    identities = (identity for event in conn.execute(query) for identity in _identities(*event))
    return replace(source, known=frozenset(identities))


def _identities(
    kind: str, message: str, data: Mapping[str, Any], ts_s: float | None
) -> tuple[tuple[object, ...], tuple[object, ...]]:
    same = (kind, text(message, MAX_TEXT), to_json({**data}))
    return same, (*same, ts_s)
