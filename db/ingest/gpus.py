"""The telemetry of a node's GPUs: what they are, samples, events. Each node of an attempt has a file of its own."""

from __future__ import annotations

from sqlalchemy import Connection

from .. import schema
from ..store import insert_into
from .gpu_lines import GpuBatch, parse
from .spool import Source, Spool
from .upsert import insert_gpu_samples


class GpuSpool(Spool[GpuBatch]):
    """What one node of an attempt says of its GPUs; `number` is the node's rank."""

    def parse(self, chunk: bytes, offset: int) -> GpuBatch:
        """Devices, samples and events."""
        return parse(chunk, offset)

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
