"""The telemetry of a node's GPUs: devices, samples, events. Each node of an attempt has a file of its own."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, select

from dscampaign.db import schema
from dscampaign.db.store import insert_into

from .gpu_lines import GpuBatch, parse
from .spool import Source, Spool
from .upsert import insert_gpu_samples


class GpuSpool(Spool[GpuBatch]):
    """The telemetry of one node of an attempt; `number` is the node's rank."""

    def parse(self, chunk: bytes, offset: int) -> GpuBatch:
        """Devices, samples and events."""
        return parse(chunk, offset)

    def newest_row(self, batch: GpuBatch) -> Select[Any] | None:
        """Return a query for the last sample."""
        if not batch.samples:
            return None
        row, (gpu, ts_s) = schema.gpu_sample.c, next(reversed(batch.samples))
        of_node = row.attempt_id == self.attempt_id, row.node_rank == self.number
        return select(row.gpu).where(*of_node, row.gpu == gpu, row.ts_s == ts_s)

    def insert(self, conn: Connection, source: Source, batch: GpuBatch) -> None:
        """A row for each GPU that is new and for each sample, and the events."""
        key = {"attempt_id": source.attempt_id, "node_rank": self.number}
        if batch.devices:
            rows = [{**key, "gpu": gpu, **found} for gpu, found in batch.devices.items()]
            conn.execute(insert_into(conn, schema.gpu).values(rows).on_conflict_do_nothing())
        insert_gpu_samples(conn, [(source.attempt_id, self.number, *row) for row in batch.samples.values()])
        for event in batch.events:
            data = {**event.facts, "node_rank": self.number}
            source.tell(conn, f"gpu.{event.name}", event.message, data, event.ts_s)
