"""The memory ledgers in the store: reads them, and records attempts that ran out of memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from sqlalchemy import Connection

from dscampaign.db import queries
from dscampaign.db.records import AttemptRow, MemoryObservation, memory_observation_key
from dscampaign.db.store import database_now
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.spec.model import RunConfig

from .config_changes import EXPANDABLE_SEGMENTS
from .prediction import Ledger, believed, memory_key


def read_ledgers(
    conn: Connection, configs: Iterable[RunConfig], rows: Iterable[AttemptRow], further: Iterable[str | None] = ()
) -> Mapping[str, Ledger]:
    """The measured memory of these runs and of all like them, in every campaign of the store; and of further keys.

    Runs are as the spec asks for them; of their attempts some may have been changed to fit into memory.
    """
    keys = {memory_key(config) for config in configs} | {row.memory_key for row in rows} | set(further)
    return ledgers_of(conn, (key for key in keys if key))


def ledgers_of(conn: Connection, keys: Iterable[str]) -> Mapping[str, Ledger]:
    """The ledgers by memory key; a key without observations has none."""
    present_s = database_now(conn)
    return {
        key: Ledger.of(believed(observations, present_s))
        for key, observations in queries.memory_of(conn, set(keys)).items()
    }


def remember_end(conn: Connection, row: AttemptRow, kind: FailureClass) -> None:
    """Record that an attempt's micro-batch did not fit on its device, if it ran out of memory.

    Fragmentation does not prove that, unless expandable segments were on or the ledger agrees.
    """
    if row.memory_key is None or row.micro_batch is None or kind not in (FailureClass.OOM, FailureClass.FRAGMENTATION):
        return
    observations = queries.memory_of(conn, [row.memory_key]).get(row.memory_key, [])
    ledger = ledgers_of(conn, [row.memory_key]).get(row.memory_key, Ledger())
    hopeless = EXPANDABLE_SEGMENTS in row.changes or ledger.fits(row.micro_batch) is False
    if kind is FailureClass.FRAGMENTATION and not hopeless:
        return
    unknown = MemoryObservation(memory_observation_key(row.memory_key), row.id, row.micro_batch, oom=False)
    before = next((each for each in observations if each.attempt_id == row.id and not each.oom), unknown)
    failed = replace(before, micro_batch=row.micro_batch, oom=True, created_s=None)
    queries.observe_memory(conn, replace(failed, peak_reserved_gb=None, peak_allocated_gb=None))
