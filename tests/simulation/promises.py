"""What must hold after every step, and in the end, whatever happened. Promises, with the spec's own numbers."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, select

from dscampaign.db import queries, schema
from dscampaign.db.records import AttemptRow, RunRow
from dscampaign.db.states import TERMINAL_ATTEMPT, WANTED, RunState, Stage
from dscampaign.orchestrator.executors.job_request import run_config
from dscampaign.orchestrator.reconcile.attempt_history import SAME_STEP
from dscampaign.orchestrator.spec.expand import SharedSections
from dscampaign.orchestrator.spec.sections import RetryConfig
from dscampaign.tests.simulation.fates import GUESSES
from dscampaign.tests.simulation.nasty_slurm import NastySlurm
from dscampaign.tests.support.budgets import FINAL, MUST_SAVE, charged, progressed, spent

FREE_LIMIT = 3


@dataclass
class Promises:
    """Checks of one world, and what it remembers of earlier ones.

    Attributes:
        unwanted: runs that the user has ever cancelled or dropped.
        forgetful: whether the store may not know yet what Slurm took.
    """

    cluster: NastySlurm
    unwanted: set[str] = field(default_factory=set)
    forgetful: bool = False
    _ended: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    _cancelled: dict[int, set[int]] = field(default_factory=dict)
    _left: set[tuple[str, int]] = field(default_factory=set)
    _sections: SharedSections = field(default_factory=SharedSections)

    def forget(self, left: Iterable[tuple[str, int]]) -> None:
        """The store was restored to an earlier state: what it had recorded since may be recorded otherwise now.

        What Slurm took, it knows again by the end.

        Args:
            left: what the folder has of attempts, by run and generation, which may all be recorded again.
        """
        self._ended, self._cancelled, self.forgetful, self._left = {}, {}, True, set(left)

    def most_forgotten(self) -> int:
        """Return how many attempts of a run the restored store may have to record again, at most."""
        return max(Counter(name for name, _ in self._left).values(), default=0)

    def check(self, conn: Connection, campaign_id: int) -> None:
        """What must hold at every moment."""
        runs, rows = _read(conn, campaign_id)
        self._check_executions()
        self._check_live(runs, rows)
        self._check_memory(rows)
        if not self.forgetful:
            self._check_taken(runs, rows)
        self._check_cancelled(runs, rows)
        _check_trials(list(runs.values()), gaps=self.forgetful)
        for run in runs.values():
            mine = [row for row in rows if row.run_id == run.id]
            unwanted = run.name in self.unwanted or any("hang" in row.evidence for row in mine)
            assert unwanted or run.name not in self.cluster.cancelled, f"{run.name} is wanted and was cancelled"
            config = run_config(run, self._sections)
            self._check_attempts(run, mine, config.train.global_batch)
            for counted in _counted_together(mine):
                left = {generation for name, generation in self._left if name == run.name}
                _check_budgets(run, counted, config.retry, left)
                if not left:
                    self._check_free(run, counted)

    def check_end(self, conn: Connection, campaign_id: int) -> None:
        """What must hold when all is settled."""
        runs, rows = _read(conn, campaign_id)
        self._check_taken(runs, rows)
        _check_search(conn, campaign_id, list(runs.values()))
        for run in runs.values():
            mine = [row for row in rows if row.run_id == run.id]
            assert run.state in _deserved(run, mine), f"{run.name} is {run.state}: {_story(mine)}"
            for row in mine:
                assert row.state in TERMINAL_ATTEMPT
                assert _stored_steps(conn, row) == _reported_steps(Path(row.spool_path)), f"{run.name} {row.generation}"

    def _check_executions(self) -> None:
        for (run, generation), jobs in self.cluster.executions.items():
            assert len(jobs) == 1, f"{run}: attempt {generation} was run by jobs {[job.job_id for job in jobs]}"

    def _check_memory(self, rows: Sequence[AttemptRow]) -> None:
        """An attempt that has ended stays, and stays as it ended."""
        ended = {row.id: (str(row.state), row.failure_class) for row in rows if row.state in TERMINAL_ATTEMPT}
        for attempt_id, how in self._ended.items():
            assert ended.get(attempt_id) == how, f"attempt {attempt_id} had ended as {how}, now {ended.get(attempt_id)}"
        self._ended = ended

    def _check_live(self, runs: Mapping[int, RunRow], rows: Sequence[AttemptRow]) -> None:
        """An attempt whose job trained when it was judged is over only where nobody had heard of it for long."""
        live = {part.name for job in self.cluster.running() for part in job.trained}
        for row in rows:
            new = row.state in TERMINAL_ATTEMPT and row.id not in self._ended
            if new and (runs[row.run_id].name, row.generation) in live:
                unheard = {"lost", "cancelled"} if runs[row.run_id].name in self.unwanted else {"lost"}
                assert row.failure_class in unheard, f"it trains, and was judged: {_story([row])}"

    def _check_taken(self, runs: Mapping[int, RunRow], rows: Sequence[AttemptRow]) -> None:
        """What Slurm took, the store knows for ever."""
        known = {(row.token, row.array_index): (runs[row.run_id].name, row.generation) for row in rows}
        named = {run.name for run in runs.values()}
        for job in self.cluster.jobs:
            for part in job.parts:
                if self.forgetful and part.name[0] not in named:
                    continue  # a run that the store has forgotten, too, and the spec no longer names
                stored = known.get(part.key)
                assert stored == part.name, f"job {job.job_id} runs {part.name}, the store has {stored}"

    def _check_cancelled(self, runs: Mapping[int, RunRow], rows: Sequence[AttemptRow]) -> None:
        """A run that its user has cancelled gets no further attempt, until the user wants it again."""
        cancelled = {run.id: set[int]() for run in runs.values() if run.desired == "cancel"}
        for row in rows:
            if row.run_id in cancelled:
                cancelled[row.run_id].add(row.generation)
        for run_id, generations in cancelled.items():
            new = generations - self._cancelled.get(run_id, generations)
            new = {generation for generation in new if (runs[run_id].name, generation) not in self._left}
            assert not new, f"{runs[run_id].name} was cancelled, and submitted again: {sorted(new)}"
        self._cancelled = cancelled

    def _check_attempts(self, run: RunRow, rows: Sequence[AttemptRow], asked: int | None) -> None:
        by_age = sorted(rows, key=lambda row: row.id)
        generations = [row.generation for row in by_age]
        assert generations == sorted(set(generations)), f"{run.name}: generations {generations}"
        assert sum(row.state not in TERMINAL_ATTEMPT for row in rows) <= 1, f"{run.name} has two live attempts"
        for row in rows:
            if asked and row.micro_batch and row.accumulation:
                assert row.micro_batch * row.accumulation * row.world_size == asked
            if row.state in TERMINAL_ATTEMPT:
                allowed = self._allowed(run, row)
                assert row.failure_class in allowed, f"{run.name} {_story([row])}, but it was {sorted(allowed)}"

    def _allowed(self, run: RunRow, row: AttemptRow) -> set[str]:
        """What the attempt may be called."""
        jobs = self.cluster.named(*row.job_key)
        executed = self.cluster.executions.get((run.name, row.generation), ())
        ran = [job for job in jobs if job in executed]
        wish = {"cancelled"} if run.name in self.unwanted else set()
        if row.token in self.cluster.refused:
            # taken back meanwhile by another leader, or cancelled where the one that was refused died before it said so
            return {"refused", "lost"} | wish
        if row.evidence.get("reason") == "cancelled before it began":
            assert not ran, f"{run.name}: attempt {row.generation} was cancelled in the queue, and run"
            return wish
        if row.failure_class == "returned":
            assert row.position is not None
            assert not ran, f"{run.name}: attempt {row.generation} was given back, and run"
            return {"returned"}
        if not jobs:
            return {"lost"}
        reason = str(row.evidence.get("reason"))
        if "led to no job" in reason or "disappeared from the queue" in reason:
            assert not ran, f"{run.name}: attempt {row.generation} was taken back, and run"
            return {"lost"}
        own = [job.of(row.token, row.array_index or 0) for job in ran or jobs]
        parts = [part for part in own if part]
        unseen = {"lost"} if not parts else set()  # its job ended before it noticed the attempt
        unseen |= {"cancelled"} if unseen and any(job.state == "CANCELLED" for job in jobs) else set()
        classes = unseen.union(*(part.classes for part in parts))
        done = bool(ran) and any(part.classes >= GUESSES and part.agents[0].finished for part in parts)
        if done and any(job.shared or job.state == "COMPLETED" for job in ran):
            classes.add("completed")  # judged before its outcome came: Slurm and the steps agree
        return classes | wish | ({"hang"} if "hang" in row.evidence else set())

    def _check_free(self, run: RunRow, rows: Sequence[AttemptRow]) -> None:
        """What no budget bounds is bounded by this; a time limit before the first step counts against one.

        A script with checkpoints of its own reveals where an attempt began only by a step: three in a row without one,
        or three that are known to have begun at the same step, are the most.
        """
        own, unknown = bool(run.config.get("command")), 0
        starts: dict[int | None, int] = defaultdict(int)
        for index, row in enumerate(rows):
            free = row.failure_class in MUST_SAVE and charged(rows[:index], row) is None
            if not free or (run.name, row.generation) not in self.cluster.executions:
                continue
            if own and row.last_step is None:
                unknown += 1
                assert unknown <= FREE_LIMIT, f"{run.name} gets nowhere: {_story(rows)}"
            else:
                unknown = 0
                starts[row.start_step] += 1
        assert max(starts.values(), default=0) <= FREE_LIMIT, f"{run.name} gets nowhere: {_story(rows)}"


def _check_trials(runs: Sequence[RunRow], *, gaps: bool) -> None:
    """No trial is there twice, and none is missing.

    `gaps`: the store went back. A trial that was never submitted then left nothing; the search proposes it again.
    """
    trials = sorted(run.name for run in runs if run.stage is Stage.TRIAL)
    assert len(trials) == len(set(trials))
    assert gaps or trials == [f"trial-{number:04}" for number in range(len(trials))]


def _check_search(conn: Connection, campaign_id: int, runs: Sequence[RunRow]) -> None:
    campaign = queries.campaign_by_id(conn, campaign_id)
    search = campaign and campaign.provenance.get("search")
    if not search:
        return
    trials = [run for run in runs if run.stage is Stage.TRIAL]
    assert not search["open"]
    held = sum(run.state is RunState.HELD for run in trials)
    assert len(trials) == search["section"]["trials"] or held >= search["section"]["parallel"]
    params = [str(run.params) for run in trials]
    assert len(set(params)) == len(params)
    whole = [run for run in trials if run.state is RunState.COMPLETED]
    assert {run.target_step for run in whole} <= {search["section"]["halving"]["to"]}
    confirmed = [run for run in runs if run.stage is Stage.FULL]
    assert len(confirmed) >= bool(whole) or held


def _read(conn: Connection, campaign_id: int) -> tuple[dict[int, RunRow], list[AttemptRow]]:
    runs = {run.id: run for run in queries.runs(conn, campaign_id)}
    return runs, queries.attempts(conn, campaign_id)


def _counted_together(rows: Sequence[AttemptRow]) -> Iterable[list[AttemptRow]]:
    """The attempts of one experiment since one `campaign retry`, oldest first."""
    groups: dict[tuple[str, int], list[AttemptRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.generation):
        groups[row.config_hash, row.retry_epoch].append(row)
    return groups.values()


def _check_budgets(run: RunRow, rows: Sequence[AttemptRow], retry: RetryConfig, left: Collection[int]) -> None:
    """A budget of n allows n further tries; after what cannot be cured there is none.

    What a store that went back records again (`left`) was begun by other accounts of what was before it.
    """
    last = charged(rows[:-1], rows[-1])
    before = [charged(rows[:index], row) for index, row in enumerate(rows[:-1]) if rows[index + 1].generation in left]
    for budget, count in spent(rows).items():
        most = int(getattr(retry, budget)) + before.count(budget)
        assert count <= most + (last is budget), f"{run.name}: retry.{budget} is {most}: {_story(rows)}"
    for row, after in itertools.pairwise(rows):
        if after.generation in left:
            continue
        over = row.failure_class in FINAL or row.failure_class == "cancelled"
        assert not over, f"{run.name} was tried again: {_story(rows)}"
        if row.failure_class == "oom":
            smaller = (after.micro_batch or 0) < (row.micro_batch or 0) or after.changes != row.changes
            assert smaller, f"{run.name} is no smaller: {_story(rows)}"


def _deserved(run: RunRow, rows: Sequence[AttemptRow]) -> set[RunState]:
    """The states in which a run with these attempts may stay, by an account of our own."""
    mine = [row for row in rows if row.config_hash == run.config_hash]
    if any(row.failure_class == "completed" and _reached(run, row) for row in mine):
        return {RunState.COMPLETED, *([RunState.PRUNED] if run.stage is Stage.TRIAL else [])}
    if run.desired not in WANTED:
        return {RunState.CANCELLED, RunState.FAILED}
    counted = [row for row in mine if row.retry_epoch == run.retry_epoch and row.failure_class != "returned"]
    if not counted:
        return set()
    return _used_up(counted, run_config(run).retry) | _ENDED.get(str(counted[-1].failure_class), set())


def _reached(run: RunRow, row: AttemptRow) -> bool:
    """Whether an attempt that completed did so at the present rung of its trial."""
    rungs = run.stage is Stage.TRIAL and run.target_step is not None
    return not rungs or max(row.start_step or 0, row.last_step or 0) >= (run.target_step or 0)


_ENDED: dict[str, set[RunState]] = {kind: {RunState.FAILED} for kind in FINAL} | {"cancelled": {RunState.CANCELLED}}


def _used_up(rows: Sequence[AttemptRow], retry: RetryConfig) -> set[RunState]:
    """The states that budgets lead to, after the last of these attempts."""
    last, states = rows[-1], set()
    budget = charged(rows[:-1], last)
    if budget and spent(rows)[budget] > getattr(retry, budget):
        states.add(RunState.FAILED)
    crashes = [row.last_step or 0 for row in rows if row.failure_class == "crash"]  # all of the same error
    if last.failure_class == "crash" and any(abs(step - crashes[-1]) <= SAME_STEP for step in crashes[:-1]):
        states.add(RunState.FAILED)  # a likely mistake is tried twice
    if last.failure_class == "oom" and last.micro_batch in (None, 1):
        states.add(RunState.FAILED)
    if sum(row.failure_class in MUST_SAVE or progressed(row) for row in rows) >= FREE_LIMIT:
        states.add(RunState.HELD)
    return states


def _stored_steps(conn: Connection, row: AttemptRow) -> list[int]:
    metric = schema.step_metric.c
    return list(conn.execute(select(metric.step).where(metric.attempt_id == row.id).order_by(metric.step)).scalars())


def _reported_steps(spool: Path) -> list[int]:
    lines = spool.read_text().splitlines() if spool.exists() else []
    return sorted(json.loads(line)["step"] for line in lines)


def _story(rows: Sequence[AttemptRow]) -> str:
    """The attempts in words, for a failure's message."""
    return ", ".join(
        f"{row.generation} {row.failure_class or row.state} ({row.evidence.get('reason', '')}; micro-batch"
        f" {row.micro_batch}, steps {row.start_step} to {row.last_step})"
        for row in rows
    )
