"""A store that goes back in time, as one that is restored from a dump, or a replica that is behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Table, select

from dscampaign.db.schema import metadata
from dscampaign.db.store import Store

State = Mapping[Table, Sequence[Mapping[str, Any]]]


def saved(store: Store) -> State:
    """All that a store holds."""
    with store.read() as conn:
        return {
            table: [dict(row) for row in conn.execute(select(table)).mappings()] for table in metadata.sorted_tables
        }


def restore(store: Store, state: State) -> None:
    """Make it hold just that again."""
    with store.write() as conn:
        for table in reversed(metadata.sorted_tables):
            conn.execute(table.delete())
        for table, rows in state.items():
            if rows:
                conn.execute(table.insert(), rows)
