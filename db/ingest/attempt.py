"""All spools of an attempt at once, as the node's agent and the reconciler take them into the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection

from dscampaign.db import schema
from dscampaign.db.errors import StaleWrite, StoreError, StoreUnreachable
from dscampaign.db.store import Store, insert_into

from .lines import GpuBatch, MetricBatch, parse, parse_gpus
from .metrics import MetricSpool
from .spool import Source, Spool, drain
from .upsert import upsert

FORWARDERS: Final = -1  # stands for a node in `node_spool`: no node writes this file


class ForwardSpool(Spool[MetricBatch]):
    """The events of an attempt's forwarders: each line is an event `forward.<event>`."""

    def __init__(self, attempt_id: int, path: Path) -> None:
        super().__init__(attempt_id, path, FORWARDERS)

    def parse(self, chunk: bytes, offset: int) -> MetricBatch:
        """Only its events are of interest."""
        return parse(chunk, offset)

    def insert(self, conn: Connection, source: Source, batch: MetricBatch) -> None:
        """Record each event."""
        for event in batch.events:
            source.tell(conn, f"forward.{event.name}", event.message, event.facts, event.ts_s)


class GpuSpool(Spool[GpuBatch]):
    """The telemetry of a node of an attempt; `number` is the node's rank."""

    def parse(self, chunk: bytes, offset: int) -> GpuBatch:
        """Devices, samples and events."""
        return parse_gpus(chunk, offset)

    def insert(self, conn: Connection, source: Source, batch: GpuBatch) -> None:
        """A row for each GPU that is new and for each sample, and the events."""
        key = {"attempt_id": source.attempt_id, "node_rank": self.number}
        if batch.devices:
            rows = [{**key, "gpu": gpu, **device} for gpu, device in batch.devices.items()]
            conn.execute(insert_into(conn, schema.gpu).values(rows).on_conflict_do_nothing())
        upsert(conn, schema.gpu_sample, [(source.attempt_id, self.number, *row) for row in batch.samples.values()])
        for event in batch.events:
            data = {**event.facts, "node_rank": self.number}
            source.tell(conn, f"gpu.{event.name}", event.message, data, event.ts_s)


def attempt_spools(attempt_id: int, metrics: Path, forwards: Path, gpus: Sequence[Path]) -> list[Spool[Any]]:
    """Return the spools of an attempt, the most important first; missing files count as empty."""
    telemetry = [GpuSpool(attempt_id, path, node_rank) for node_rank, path in enumerate(gpus)]
    return [MetricSpool(attempt_id, metrics), ForwardSpool(attempt_id, forwards), *telemetry]


def drain_attempt(
    store: Store,
    spools: Sequence[Spool[Any]],
    source_of: Callable[[int], Source] | None = None,
    renew_lease: Callable[[], None] = lambda: None,
    stretches: float = inf,
) -> bool:
    """Take at most so many stretches of each of an attempt's spools into the store; return whether lines were left.

    `source_of` returns the store's position in a spool, by `Spool.number`; by default the store is asked. `renew_lease`
    is called before each stretch, and its exception ends this; agents act under no lease. Raises StoreUnreachable: no
    line is lost; LookupError: no such attempt; OSError, StoreError: a spool cannot be read or written, and the others
    were taken.
    """
    failed: OSError | StoreError | None = None
    left = False
    for spool in spools:
        try:
            left |= drain(store, spool, source_of and source_of(spool.number), renew_lease, stretches)
        except (StoreUnreachable, StaleWrite):
            raise
        except (OSError, StoreError) as exc:
            failed = failed or exc
    if failed:
        raise failed
    return left
