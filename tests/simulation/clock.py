"""The time of a world in which hours pass at once: the database's, from which nodes and Slurm may differ."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace

from sqlalchemy import event

from dscampaign.db.store import Store

UNIX_EPOCH_DAYS = 2440587.5
"""1970-01-01 as SQLite counts days."""


class Clock:
    """A clock that the test turns.

    Attributes:
        now_s: the database's time, epoch seconds.
        error_s: how far Slurm's clock is ahead of it.
        nodes_error_s: how far the nodes' clocks are.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self, error_s: float = 0.0, nodes_error_s: float = 0.0) -> None:
        """The beginning of a world's time."""
        self.now_s = 1_800_000_000.0
        self.error_s, self.nodes_error_s = error_s, nodes_error_s

    def slurm_s(self) -> float:
        """The time that Slurm believes in."""
        return self.now_s + self.error_s

    def node_s(self) -> float:
        """The time that nodes believe in."""
        return self.now_s + self.nodes_error_s

    def rule(self, store: Store) -> Store:
        """Makes a SQLite store take this clock for the database's own, and returns it."""
        event.listen(store._engine, "connect", self._connected)
        store.close()  # connections that were opened before know another time
        return store

    def as_module(self) -> SimpleNamespace:
        """What a node's agent, or a reconciler's lease, takes for the module `time`."""
        return SimpleNamespace(time=self.node_s, monotonic=lambda: self.now_s, sleep=lambda _: None)

    def _connected(self, connection: sqlite3.Connection, _record: object) -> None:
        # a function of one's own comes before SQLite's of that name
        connection.create_function("julianday", 1, lambda _: self.now_s / 86_400 + UNIX_EPOCH_DAYS)
