"""The lease: one reconciler at a time, by the database's clock.

The epoch grows whenever the holder changes, and every write checks it in its own transaction: a leader that was stopped
past its lease writes nothing.
"""

from __future__ import annotations

from sqlalchemy import (
    Connection,
    case,
    or_,
    select,
    update,
)

from . import schema
from .errors import StaleLease
from .records import (
    Lease,
)
from .store import insert_into, now_s


def acquire_lease(conn: Connection, name: str, holder: str, ttl_s: float) -> int | None:
    """Take a lease, or renew one's own, which keeps its epoch; return the epoch, None while another holder has it."""
    now = now_s(conn)
    new = insert_into(conn, schema.lease).values(name=name, holder=holder, epoch=1, expires_s=now + ttl_s)
    mine = schema.lease.c.holder == new.excluded.holder
    upsert = new.on_conflict_do_update(
        index_elements=[schema.lease.c.name],
        set_={
            "holder": new.excluded.holder,
            "epoch": case((mine, schema.lease.c.epoch), else_=schema.lease.c.epoch + 1),
            "expires_s": new.excluded.expires_s,
        },
        # none lasts as long as twice: it was taken before the clock was set back
        where=or_(mine, schema.lease.c.expires_s <= now, schema.lease.c.expires_s > now + 2 * ttl_s),
    )
    return conn.execute(upsert.returning(schema.lease.c.epoch)).scalar_one_or_none()


def renew_lease(conn: Connection, name: str, epoch: int, ttl_s: float) -> None:
    """Renew a lease, even if it ran out, and make this transaction depend on it; raises StaleLease if it is lost."""
    mine = update(schema.lease).where(schema.lease.c.name == name, schema.lease.c.epoch == epoch)
    if not conn.execute(mine.values(expires_s=now_s(conn) + ttl_s)).rowcount:
        current = read_lease(conn, name)
        raise StaleLease(f"the lease {name} has moved on from epoch {epoch} to {current and current.epoch}")


def report_pass(conn: Connection, name: str, looked_s: float | None, *, heard: bool, trouble: str) -> None:
    """Record the result of a pass: see `Lease`. `looked_s`: when it asked for jobs, None if it did not."""
    times = {} if looked_s is None else {"asked_s": looked_s, **({"heard_s": looked_s} if heard else {})}
    conn.execute(update(schema.lease).where(schema.lease.c.name == name).values(trouble=trouble, **times))


def read_lease(conn: Connection, name: str) -> Lease | None:
    """Return the lease as it stands, expired or not."""
    row = conn.execute(select(schema.lease).where(schema.lease.c.name == name)).first()
    return None if row is None else Lease(*row)


def release_lease(conn: Connection, name: str, epoch: int, after_s: float = 0.0) -> bool:
    """Let a lease run out, at once or in so many seconds; return False if it belongs to another holder by now."""
    mine = update(schema.lease).where(schema.lease.c.name == name, schema.lease.c.epoch == epoch)
    return conn.execute(mine.values(expires_s=now_s(conn) + after_s)).rowcount == 1
