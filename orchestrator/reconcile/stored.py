"""Reads the store's view of a campaign, all at a single moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy import Connection

from dscampaign.db import campaigns, leases, open_runs, queries
from dscampaign.db.open_runs import WaitingAttempt
from dscampaign.db.records import AttemptRow, CampaignRow, RunRow
from dscampaign.db.states import SETTLED_RUN, TERMINAL_ATTEMPT, WANTED, AttemptState, RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.executors.job_request import run_config
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.memory.observations import read_ledgers
from dscampaign.orchestrator.spec.expand import SharedSections
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.orchestrator.spec.slurm_syntax import gpus_per_rank

from .lease import lease_name
from .snapshot import StoreState

P = ParamSpec("P")
T = TypeVar("T")

QUEUE_FULL: Final = "queue.full"  # kind of event about a submit limit, for all runs that wait for it
QUEUE_FULL_S: Final = 600.0  # time for which a full queue is probed with few jobs, and not reported again
AT_ONCE: Final = 10_000  # runs begun in a pass: the configurations of all would fill the memory of a login node
PROBED: Final = 1000  # the same while there is hardly room
NODE_KINDS: Final = frozenset(kind for kind in FailureClass if kind.policy.strike) | {FailureClass.DETERMINISTIC}
"""Failure classes of a node."""


class Configs:
    """The configurations of runs, each read once, when it is first needed."""

    def __init__(self) -> None:
        self._read: dict[int, RunConfig] = {}
        self._sections = SharedSections()

    def of(self, run: RunRow) -> RunConfig:
        """Return the configuration of a run. Raises any error that keeps it from being read."""
        if run.id not in self._read:
            self._read[run.id] = run_config(run, self._sections)
        return self._read[run.id]

    def if_readable(self, run: RunRow) -> RunConfig | None:
        """Return it, or None for a run that cannot be read, which is reported when it is looked at."""
        with suppress(Exception):
            return self.of(run)
        return None


@dataclass(frozen=True, kw_only=True)
class Stored(StoreState):
    """The store's view of a campaign."""

    runs: tuple[RunRow, ...]  # all, or only those to look at
    configs: Configs
    attempts: Mapping[int, Sequence[AttemptRow]]  # by run id, oldest first
    # size of the largest recorded checkpoint of runs that wait for storage, by run id
    checkpoint_bytes: Mapping[int, int] = field(default_factory=dict)
    waiting: Sequence[WaitingAttempt] = ()  # runs that only wait in the queue, not among `runs`
    heard_s: float | None = None  # when the executor last answered a pass, by the store's clock

    @property
    def active(self) -> list[AttemptRow]:
        """The attempts that may still run, of the runs to look at."""
        return [row for rows in self.attempts.values() for row in rows if row.state not in TERMINAL_ATTEMPT]

    def looking_at(self, run_ids: Sequence[int], store: Store) -> Stored:
        """Return the same with these runs, too."""
        if not run_ids:
            return self
        with store.read() as conn:
            runs, attempts = _read(conn, run_ids)
            rows = chain.from_iterable(attempts.values())
            ledgers = read_ledgers(conn, _undecided(runs, attempts, self.configs), rows)
        return replace(
            self,
            runs=tuple(sorted([*self.runs, *runs], key=lambda run: (run.ordinal, run.id))),
            attempts={**self.attempts, **attempts},
            ledgers={**self.ledgers, **ledgers},
        )


def read_store(store: Store, campaign: CampaignRow) -> Stored:
    """Read the whole campaign in a single transaction."""
    with store.read() as conn:
        fresh = queries.campaign_by_name(conn, campaign.name) or campaign
        runs, attempts = queries.runs(conn, campaign.id), queries.attempts_by_run(conn, campaign.id)
        return _stored(conn, store, fresh, runs, attempts)


def read_open(store: Store, campaign: CampaignRow, skipped: int = 0) -> Stored:
    """Read at one moment the part of a campaign that a pass looks at, without so many `skipped` fresh runs."""
    with store.read() as conn:
        fresh = queries.campaign_by_name(conn, campaign.name) or campaign
        cancelled = fresh.desired == "cancelled"
        ids, waiting = open_runs.open_runs(conn, campaign.id, cancelled=cancelled)
        most = _most(conn, store, fresh, len(ids) + len(waiting))
        begin, more = open_runs.fresh_runs(conn, campaign.id, most, skipped)
        runs, attempts = _read(conn, [*ids, *begin])
        stored = _stored(conn, store, fresh, runs, attempts, [attempt.memory_key for attempt in waiting])
        lease = leases.read_lease(conn, lease_name(campaign.id))
        return replace(
            stored,
            waiting=waiting,
            heard_s=lease.heard_s if lease else None,
            more=more,
            failed=open_runs.failed_attempts(conn, campaign.id, NODE_KINDS, attempts.keys()),
            trained_on=partial(later, store, open_runs.trained_hosts, campaign.id),
            trained_with=partial(later, store, open_runs.trained_interpreters, campaign.id),
        )


def _most(conn: Connection, store: Store, campaign: CampaignRow, running: int) -> int:
    full_s, limit = queries.newest_event_s(conn, campaign.id, QUEUE_FULL), campaign.limits.get("running")
    full = full_s is not None and store.now(conn) - full_s < QUEUE_FULL_S
    return PROBED if full else AT_ONCE if limit is None else min(AT_ONCE, max(PROBED, limit - running))


def _read(conn: Connection, run_ids: Sequence[int]) -> tuple[list[RunRow], dict[int, list[AttemptRow]]]:
    runs = open_runs.runs_of(conn, run_ids)
    attempts: dict[int, list[AttemptRow]] = {run.id: [] for run in runs}
    for row in open_runs.attempts_of_runs(conn, run_ids):
        attempts[row.run_id].append(row)
    return runs, attempts


def _stored(
    conn: Connection,
    store: Store,
    campaign: CampaignRow,
    runs: Sequence[RunRow],
    attempts: Mapping[int, Sequence[AttemptRow]],
    memory_keys: Iterable[str | None] = (),
) -> Stored:
    configs, rows = Configs(), chain.from_iterable(attempts.values())
    storage = [run.id for run in runs if waits_for_storage(run, attempts.get(run.id, ()))]
    now_s = store.now(conn)
    return Stored(
        now_s=now_s,
        campaign=campaign,
        runs=tuple(runs),
        configs=configs,
        attempts=attempts,
        ledgers=read_ledgers(conn, _undecided(runs, attempts, configs), rows, memory_keys),
        checkpoint_bytes=queries.checkpoint_sizes(conn, storage),
        gpu_seconds=partial(later, store, _gpu_seconds, campaign, now_s),
    )


def _gpu_seconds(conn: Connection, campaign: CampaignRow, now_s: float) -> float:
    used = campaigns.rank_seconds(conn, lambda _: now_s, campaign.id).get(campaign.id, {})
    return sum(seconds * gpus_per_rank(campaign.executor, *requested) for requested, seconds in used.items())


def later(store: Store, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a query of its own."""
    with store.read() as conn:
        return query(conn, *args, **kwargs)


def waits_for_storage(run: RunRow, rows: Sequence[AttemptRow]) -> bool:
    """Return whether a run goes on once its folder can be written."""
    if not rows or run.desired not in WANTED or run.state in SETTLED_RUN - {RunState.HELD}:
        return False
    ran = [row for row in rows if row.failure_class != FailureClass.RETURNED]
    return rows[-1].state in TERMINAL_ATTEMPT and bool(ran) and ran[-1].failure_class == FailureClass.STORAGE


def _undecided(
    runs: Sequence[RunRow], attempts: Mapping[int, Sequence[AttemptRow]], configs: Configs
) -> Iterator[RunConfig]:
    """Yield the configurations of runs whose next attempt may be decided now."""
    for run in runs:
        rows = attempts.get(run.id, ())
        waits = rows and rows[-1].state is AttemptState.QUEUED
        undecided = not waits and (run.state not in SETTLED_RUN or run.state is RunState.HELD)
        if undecided and (config := configs.if_readable(run)):
            yield config
