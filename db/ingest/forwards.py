"""What became of a run's metrics in other tools: each line of an attempt's forwarders is an event `forward.<event>`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection

from .lines import MetricBatch, parse
from .spool import Source, Spool

FORWARDERS: Final = -1
"""Stands for a node in `node_spool`: no node writes this file."""


class Forwards(Spool[MetricBatch]):
    """What the forwarders of an attempt say."""

    def __init__(self, attempt_id: int, path: Path) -> None:
        super().__init__(attempt_id, path, FORWARDERS)

    def parse(self, chunk: bytes, offset: int) -> MetricBatch:
        """Only its events are of interest."""
        return parse(chunk, offset)

    def insert(self, conn: Connection, source: Source, batch: MetricBatch) -> None:
        """Records each event."""
        for event in batch.events:
            message = str(event.data.pop("message", ""))
            source.tell(conn, f"forward.{event.name}", message, event.data, event.ts_s)
