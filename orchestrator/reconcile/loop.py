"""The reconcile loop: drain, observe, decide, act, under a lease."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from dscampaign.db import bulk, gpu_queries, open_runs, queries
from dscampaign.db.errors import AWAY, SchemaMismatch, StaleLease, StoreUnreachable
from dscampaign.db.ingest.attempt import attempt_spools, drain_attempt
from dscampaign.db.ingest.metrics import METRICS
from dscampaign.db.ingest.spool import Source
from dscampaign.db.records import AttemptRow, CampaignRow
from dscampaign.db.states import RunState
from dscampaign.db.store import Store
from dscampaign.jobs.agent.evidence import NodeOutcome
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.jobs.shared.payload import Identity
from dscampaign.orchestrator.commands import in_pieces
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors.base import Executor
from dscampaign.orchestrator.executors.job_request import attempt_paths
from dscampaign.orchestrator.executors.slurm_commands import before_each_command
from dscampaign.orchestrator.memory.prediction import Ledger

from .act import act
from .actions import Action, Finish, SetAside, SetRun, Submit, run_of
from .attempt_files import is_foreign
from .campaign_folder import CampaignFolder, FolderId, run_folder, run_folders
from .decide import decide, settled
from .follow_ups import follow
from .lease import FencedWriter, LeaseHeld, LeaseHolder, release_lease, take_lease
from .notify import deliver
from .observe import observe
from .recall import Recollection
from .record import record_activities
from .search import Measure, advance
from .set_aside import give_up_spool
from .snapshot import Snapshot
from .stored import read_open

LATE_S = 3600.0  # how long after an attempt's end its metrics may still become readable
MOST_TROUBLES = 3  # kept for `campaign status`
LONGEST_DRAIN_S = 10.0  # after that, the next pass reads on
LONGEST_REST_S = 60.0  # between two tries while the store or the folder is away
SLURM_POLL_S = 10.0
LOCAL_POLL_S = 1.0


class _Before(NamedTuple):
    """State of the last pass without troubles, for the next pass of its process under the same lease."""

    epoch: int = 0  # of the lease
    drained_s: float | None = None  # when all spools were read, by the store's clock; None if they were not
    # the measured memory by which it looked at the runs in the queue
    ledgers: Mapping[str, Ledger] = MappingProxyType({})


@dataclass
class _Drained:
    until_s: float  # when to leave the rest to the next pass, by this process's steady clock
    troubles: list[Unreachable] = field(default_factory=list)
    unread: set[int] = field(default_factory=set)  # ids of runs whose spools hold more, judged when all is read


@dataclass(frozen=True)
class Pass:
    """The snapshot and the actions of a pass."""

    snapshot: Snapshot
    actions: tuple[Action, ...]
    settled: bool  # whether nothing is left to do
    troubles: tuple[Unreachable, ...]  # errors that pass
    unread: bool = False  # whether spools hold more than it had time to read
    undelivered: tuple[str, ...] = ()  # why messages of `notify` are late, "" for those under way

    @property
    def goes_on(self) -> bool:
        """Whether another pass has work at once: spools to read on, or runs to begin, as this pass did."""
        if self.unread and not self.troubles:
            return True
        taken_up = {action.run.id for action in self.actions if isinstance(action, Submit | SetRun)}
        fresh = _fresh(self.snapshot)
        return self.snapshot.more and not self.troubles and bool(fresh) and fresh <= taken_up


class Reconciler:
    """Brings one campaign to its desired state, pass by pass; `measure` returns the figures of runs, for a search."""

    def __init__(
        self, store: Store, campaign: CampaignRow, executor: Executor | None = None, measure: Measure | None = None
    ) -> None:
        self._store, self._campaign, self._measure = store, campaign, measure
        self._folder = CampaignFolder(campaign)
        self.paths = self._folder.paths
        self._executor = executor or make_executor(campaign, self.paths)
        self._holder = LeaseHolder.me()
        self._recollection = Recollection(self.paths)
        self._before = _Before()
        self._skipped = 0  # runs that come first and cannot begin, so that those behind them have their turn

    def run_pass(self) -> Pass:
        """Make one pass.

        Raises LeaseHeld, StaleLease if another reconciler is at work or took over; Unreachable, StoreUnreachable if the
        shared folder, the store or this program's own environment is away: nothing is lost, the next pass continues.
        """
        writer = take_lease(self._store, self._campaign, self._holder)
        try:
            with before_each_command(writer.renew):
                done = self._pass(writer)
        except (OSError, ImportError) as exc:  # a module that is loaded late belongs to an environment that may be away
            broken = f"the pass failed: {exc}"
            writer.report(trouble=broken)
            raise Unreachable(broken, "nothing is lost; the next pass continues") from exc
        except Unreachable as exc:
            writer.report(trouble=exc.message)
            raise
        troubles = "; ".join(trouble.message for trouble in done.troubles[:MOST_TROUBLES])
        writer.report(done.snapshot.now_s, heard=done.snapshot.listed, trouble=troubles)
        self._recollection.reported(done.snapshot.now_s)
        with suppress(*AWAY):  # the pass was made
            return replace(done, undelivered=tuple(deliver(self._store, done.snapshot.campaign)))
        return done

    def _pass(self, writer: FencedWriter) -> Pass:
        before = self._before if self._before.epoch == writer.epoch else _Before(writer.epoch)
        self._before = _Before(writer.epoch)
        drained = _Drained(time.monotonic() + LONGEST_DRAIN_S)
        folder_id = self._folder.require(self._store.url_without_password)
        recalled = self._recollection.recall(writer)
        self._drain(writer, before, drained)
        stored = read_open(self._store, self._campaign, self._skipped)
        grown = follow(writer, stored.campaign, self.paths)
        searched = advance(writer, stored.campaign, self._measure, lambda: stored.gpu_seconds() / 3600)
        if searched or grown:
            again = self._recollection.recall(writer)  # a store that went back may have had these runs before
            recalled = again._replace(trouble=recalled.trouble or again.trouble)
            stored = read_open(self._store, self._campaign, self._skipped)
        writer.renew()
        snapshot, trouble = observe(stored, self._executor, self.paths, self._store, writer.renewing, before.ledgers)
        writer.renew()  # where no run needs a look, nothing in between has
        record_activities(snapshot, writer)
        decided = decide(snapshot)
        # runs that have ended and whose spools hold more are judged later, those with forgotten attempts begin none
        later = {run_of(action) for action in decided if isinstance(action, Finish)} & drained.unread
        actions = [action for action in decided if run_of(action) not in later]
        actions = [a for a in actions if not (isinstance(a, Submit) and a.run.id in recalled.waiting)]
        passing = {action.run_id for action in decided if isinstance(action, SetAside) and action.passing}
        fresh = _fresh(snapshot)  # those that cannot begin although there is room make room for those behind them
        self._skipped = self._skipped + len(passing & fresh) if snapshot.more and fresh else 0
        ends = [action for action in actions if isinstance(action, Finish)]
        self._require_unchanged(folder_id, ends)
        acted = act(actions, writer, self._executor, self.paths)
        drain(writer, [end.attempt.id for end in self._with_folder(ends)], drained)
        troubles = [*drained.troubles, *filter(None, (recalled.trouble, trouble)), *acted]
        if not troubles:
            drained_s = before.drained_s if drained.unread else stored.now_s
            self._before = _Before(writer.epoch, drained_s=drained_s, ledgers=stored.ledgers)
        over = not actions and not troubles and not drained.unread and settled(snapshot)
        if over and before.drained_s is not None:  # what Slurm forgot may have run on; nobody looks after this pass
            self._drain(writer, _Before(), drained)
            troubles = drained.troubles
        over = over and not troubles and not drained.unread
        return Pass(snapshot, tuple(actions), over, tuple(troubles), bool(drained.unread))

    def watch(
        self, *, sleep: Callable[[float], None] = time.sleep, poll_s: float | None = None
    ) -> Iterator[Pass | Exception]:
        """Make passes until everything is settled.

        Yields errors and waits while another reconciler has the lease and, once a pass was possible, while a store, a
        shared folder or an environment is away: twice as long each time, a minute at most.
        """
        has_run, away, poll_s = False, 0, poll_s or default_poll_s(self._campaign)
        while True:
            try:
                done = self.run_pass()
                yield done
                if self.is_over(done) and not done.undelivered:
                    return
                has_run = True
                if done.goes_on:
                    away = 0
                    continue
            except (LeaseHeld, StaleLease) as exc:
                has_run, away = True, 0
                yield exc
            except (*AWAY, Unreachable) as exc:
                if not has_run:
                    raise
                yield exc
                away += 1
            else:
                away = 0
            sleep(min(poll_s * 2 ** min(away, 9), max(poll_s, LONGEST_REST_S)))

    def _require_unchanged(self, folder_id: FolderId, ends: Sequence[Finish]) -> None:
        """Make sure that the folder was there all the time: files seemed to be missing while it was away."""
        if self._folder.require() != folder_id or any(map(_has_appeared, self._with_folder(ends))):
            raise Unreachable("the shared folder was unavailable for a moment", "the next pass looks again")
        self._folder.complete()

    def _with_folder(self, ends: Sequence[Finish]) -> list[Finish]:
        """The first agent of a run makes its folder: without it, there are no files."""
        folders = run_folders(self.paths) if ends else set()
        return [end for end in ends if run_folder(end.attempt) in folders]

    def _drain(self, writer: FencedWriter, before: _Before, drained: _Drained) -> None:
        """Spools of runs that are settled for long are read once."""
        with self._store.read() as conn:
            now_s = self._store.now(conn)
            # Since the last pass, hours may have gone by without one, or the clock may have been set back.
            late_s = min(now_s, before.drained_s or now_s) - LATE_S
            spools = open_runs.unread_spools(conn, self._campaign.id, late_s, ended=before.drained_s is None)
        folders = run_folders(self.paths) if spools else set()  # the first agent of a run makes its folder
        drain(writer, [attempt_id for attempt_id, name in spools if name in folders], drained)

    def is_over(self, done: Pass) -> bool:
        """Return whether a pass was the last: all is settled, nothing has come since it looked.

        Then the lease is free.
        """
        if not done.settled:
            return False
        self.close()
        with self._store.read() as conn:
            now = queries.campaign_by_name(conn, self._campaign.name)
            unsettled = self._campaign.id in queries.unsettled_campaigns(conn)
        asked, fields = done.snapshot.campaign, ("id", "spec_hash", "desired", "limits")
        return not unsettled and (now is None or all(getattr(now, name) == getattr(asked, name) for name in fields))

    def close(self, after_s: float = 0.0) -> None:
        """Release the lease, at once or in so many seconds; in a store that is away it expires."""
        with suppress(*AWAY, SchemaMismatch):
            release_lease(self._store, self._campaign, self._holder, after_s)


def _fresh(snapshot: Snapshot) -> set[int]:
    runs = [*(view.run for view in snapshot.runs), *(broken.run for broken in snapshot.broken)]
    return {run.id for run in runs if run.state is RunState.PENDING and not run.generation}


def _has_appeared(finish: Finish) -> bool:
    node_ranks = {outcome.node_rank for outcome in finish.ended.outcomes}
    paths, mine = attempt_paths(finish.attempt), Identity.of(finish.attempt)
    if is_foreign(finish.attempt):
        return False
    late = (NodeOutcome.read(paths.outcome(node)) for node in range(finish.attempt.nodes) if node not in node_ranks)
    return any(outcome is not None and mine.owns(vars(outcome)) for outcome in late)


def default_poll_s(campaign: CampaignRow) -> float:
    """Return the seconds between two passes: Slurm's controller serves others too."""
    return SLURM_POLL_S if campaign.executor == "slurm" else LOCAL_POLL_S


def make_executor(campaign: CampaignRow, paths: CampaignPaths) -> Executor:
    """Return the executor of the campaign's spec."""
    if campaign.executor == "local":
        # imported here, as below: a command needs one of them
        from dscampaign.orchestrator.executors.local import LocalExecutor

        return LocalExecutor(paths.dir / "batches")
    from dscampaign.orchestrator.executors.slurm import SlurmExecutor

    return SlurmExecutor(paths.dir)


def drain(writer: FencedWriter, attempt_ids: Sequence[int], drained: _Drained) -> None:
    """Ingest lines that the agents have not pushed: a stretch of each spool in turn; `drained` receives the results."""
    left: list[AttemptRow] = []
    while attempt_ids:
        left = []
        for some in in_pieces("attempts read", attempt_ids):
            with writer.store.read() as conn:
                rows, offsets = bulk.attempts_of(conn, some), gpu_queries.node_offsets(conn, some)
            for row in writer.renewing(rows):
                if not row.spool_offset and is_foreign(row):
                    continue
                try:
                    if _drain_attempt(row, offsets.get(row.id, {}), writer):
                        left.append(row)
                except (StoreUnreachable, StaleLease):
                    raise
                except Exception as exc:  # noqa: BLE001 - whatever it is, it is this attempt's alone
                    trouble = give_up_spool(row, exc, writer)
                    drained.troubles += [trouble] if trouble else []
        attempt_ids = [row.id for row in left]
        if time.monotonic() >= drained.until_s:
            break
    drained.unread |= {row.run_id for row in left}


def _drain_attempt(row: AttemptRow, offsets: Mapping[int, int], writer: FencedWriter) -> bool:
    def source_of(number: int) -> Source:
        offset = row.spool_offset if number == METRICS else offsets.get(number, 0)
        return Source(writer.campaign_id, row.run_id, row.generation, row.id, offset)

    paths = attempt_paths(row)
    gpus = map(paths.gpu_spool, range(row.nodes))
    spools = attempt_spools(row.id, paths.metrics, paths.forward_spool, list(gpus))
    return drain_attempt(writer.store, spools, source_of, writer.renew, stretches=1)
