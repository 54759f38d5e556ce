"""What a campaign promises whatever befalls it, checked against what the training script itself wrote down."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from sqlalchemy import select

from dscampaign.db import schema
from dscampaign.db.records import AttemptRow, RunRow
from dscampaign.db.states import RunState
from dscampaign.files.atomic_files import read_json
from dscampaign.orchestrator.executors.job_request import run_config
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.reconcile.actions import Finish, SetRun, Submit
from dscampaign.orchestrator.reconcile.snapshot import AttemptView, Snapshot
from dscampaign.tests.support.budgets import FINAL, spent
from dscampaign.tests.support.campaigns import Observed

from .ledger import Ledger, duplicate_executions, restarts
from .trial import Timed, Trial

PASSES_TO_DECIDE = 2


def broken_promises(trial: Trial) -> list[str]:
    """Every promise that was broken, in words; none if all is well."""
    seen = trial.observe()
    broken: list[str] = []
    for name, run in seen.runs.items():
        ledger, attempts = trial.ledger(name), seen.attempts[name]
        broken += duplicate_executions(ledger)
        broken += _unclaimed(ledger, attempts)
        broken += _metrics(seen, run, attempts, ledger)
        broken += _rollbacks(ledger)
        broken += _budgets(run, attempts)
    return [*broken, *_slow_decisions(trial.passes)]


def _unclaimed(ledger: Ledger, attempts: Sequence[AttemptRow]) -> Iterator[str]:
    """Whatever was executed belongs to the job that has the claim and that the store names."""
    known = {attempt.generation: attempt for attempt in attempts}
    for generation in ledger.generations():
        jobs = {line.job for line in ledger.of(generation) if line.what != "outside"}
        if generation not in known:
            yield f"{ledger.run}: the store knows no attempt {generation}, which job {jobs} executed"
            continue
        claim = read_json(Path(known[generation].spool_path).parent / "claim") or {}
        if jobs != {claim.get("job_id")} or jobs != {known[generation].job_id}:
            told = f"claim {claim.get('job_id')}, store {known[generation].job_id}"
            yield f"{ledger.run}: attempt {generation} was executed by {jobs}, {told}"


def _metrics(seen: Observed, run: RunRow, attempts: Sequence[AttemptRow], ledger: Ledger) -> Iterator[str]:
    for attempt in attempts:
        stored, reported = _stored_steps(seen, attempt), _spooled_steps(attempt)
        if stored != reported:
            yield f"{run.name}: attempt {attempt.generation} reported {reported}, the store has {stored}"
        executed = ledger.steps(attempt.generation)
        if reported not in (executed, executed[:-1]):  # the last one: killed between execution and report
            yield f"{run.name}: attempt {attempt.generation} executed {executed} and reported {reported}"
    if run.state is RunState.COMPLETED:
        steps = seen.steps(run.name)
        if steps != list(range(1, (run.target_step or 0) + 1)):
            yield f"{run.name}: completed with the steps {steps}"
        newest = {step: g for g in ledger.generations() for step in ledger.steps(g)}
        wrong = [row.step for row in seen.metrics(run.name) if newest.get(row.step, 0) < row.generation]
        if wrong:
            yield f"{run.name}: steps {wrong} come from an attempt that never executed them"


def _stored_steps(seen: Observed, attempt: AttemptRow) -> list[int]:
    table = schema.step_metric.c
    with seen.store.read() as conn:
        rows = conn.execute(select(table.step).where(table.attempt_id == attempt.id).order_by(table.step))
        return [int(step) for step in rows.scalars()]


def _spooled_steps(attempt: AttemptRow) -> list[int]:
    """The steps in the complete lines of the spool; a line that broke off, as on a full disk, says nothing."""
    spool = Path(attempt.spool_path)
    complete = spool.read_bytes().split(b"\n")[:-1] if spool.exists() else []
    return [line["step"] for text in complete if (line := _parsed(text)) and "step" in line]


def _parsed(text: bytes) -> dict[str, int]:
    try:
        return dict(json.loads(text))
    except ValueError:
        return {}


def _rollbacks(ledger: Ledger) -> Iterator[str]:
    """An attempt begins where the newest checkpoint is: never further, and further back only where that was spoilt."""
    spoilt = sum(fault.startswith("truncate") for fault in ledger.faults())
    behind = 0
    for restart in restarts(ledger):
        behind += restart.began < restart.saved
        if restart.began > restart.saving:
            yield f"{ledger.run}: began from step {restart.began}, but only {restart.saving} was saved"
    if behind > spoilt:
        yield f"{ledger.run}: {behind} attempts began behind the newest checkpoint, {spoilt} checkpoints were spoilt"


def _budgets(run: RunRow, attempts: Sequence[AttemptRow]) -> Iterator[str]:
    """Each budget allows so many tries after the first; what is final is tried once."""
    retry = run_config(run).retry
    for budget, used in spent(attempts).items():
        if used > (most := getattr(retry, budget) + 1):
            yield f"{run.name}: {used} attempts count against retry.{budget}, {most} are allowed"
    for kind, count in Counter(attempt.failure_class for attempt in attempts).items():
        if count > 1 and (kind in FINAL or kind == FailureClass.COMPLETED):
            yield f"{run.name}: {count} attempts of class {kind}, one is allowed"


def _slow_decisions(passes: Sequence[Timed]) -> Iterator[str]:
    """From the first look that shows all there is to know of an end, at most two passes until it is decided on."""
    waited: Counter[int] = Counter()
    for timed in passes:
        snapshot, actions = timed.done.snapshot, timed.done.actions
        decided = {a.run.id for a in actions if isinstance(a, SetRun | Submit)}
        waited.update(view.latest.row.id for view in snapshot.runs if view.latest and _over(view.latest, snapshot))
        for finish in (a for a in actions if isinstance(a, Finish)):
            if (took := waited[finish.attempt.id]) > PASSES_TO_DECIDE:
                yield f"attempt {finish.attempt.token}: it took {took} passes to decide on its end"
            if finish.attempt.run_id not in decided:
                yield f"attempt {finish.attempt.token}: the pass that saw its end decided nothing"


def _over(attempt: AttemptView, snapshot: Snapshot) -> bool:
    """Whether nothing more will ever be known of it: without a word from its agents it gets a moment of grace."""
    job = attempt.job
    if not attempt.active or job is None or not job.terminal:
        return False
    return attempt.complete or snapshot.now_s - (job.ended_s or 0.0) > snapshot.outcome_grace_s
