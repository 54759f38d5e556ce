"""The store, the shared folder and the executor → a snapshot. Reads only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..db import queries
from ..db.records import TERMINAL_ATTEMPT, AttemptRow, CampaignRow, RunRow
from ..db.store import Store
from ..jobs import checkpoint
from ..jobs.evidence import LogLine, NodeOutcome
from ..jobs.files import read_json
from ..jobs.layout import AttemptPaths, CampaignPaths, RunPaths
from ..jobs.node import Start
from .attempts import revoked, run_config, trains_on_cpu
from .decide import SETTLED
from .executor import Executor, JobView, Look, Unreachable
from .world import AttemptView, RunView, Snapshot

AGENT_LOG_LINES = 40


@dataclass(frozen=True)
class Stored:
    """What the store knows of a campaign at one moment of its clock."""

    now_s: float
    campaign: CampaignRow
    runs: tuple[RunRow, ...]
    attempts: dict[int, list[AttemptRow]]

    @property
    def active(self) -> list[AttemptRow]:
        """The attempts that may still run."""
        return [row for rows in self.attempts.values() for row in rows if row.state not in TERMINAL_ATTEMPT]


def read_store(store: Store, campaign: CampaignRow) -> Stored:
    """Reads the campaign in one transaction."""
    with store.read() as conn:
        fresh = queries.campaign_by_name(conn, campaign.name) or campaign
        runs, rows, now_s = queries.runs(conn, campaign.id), queries.attempts(conn, campaign.id), store.now(conn)
    attempts: dict[int, list[AttemptRow]] = defaultdict(list)
    for row in rows:
        attempts[row.run_id].append(row)
    return Stored(now_s, fresh, tuple(runs), attempts)


def observe(stored: Stored, executor: Executor, paths: CampaignPaths) -> tuple[Snapshot, Unreachable | None]:
    """Looks at the executor once, and at the folders of the attempts that may still run.

    Returns:
        The snapshot, and why the executor could not be asked if it could not: the snapshot then says so.

    Raises:
        Unreachable: the shared folder cannot be read.
    """
    look, trouble = _look(stored.active, executor)
    try:
        views = tuple(_run_view(run, stored.attempts.get(run.id, []), look, paths) for run in stored.runs)
    except OSError as exc:
        raise Unreachable(f"the shared folder cannot be read: {exc}", "the next pass tries again") from exc
    snapshot = Snapshot(
        now_s=stored.now_s,
        campaign=stored.campaign,
        runs=views,
        looked=trouble is None,
        complete=look.complete,
        capacity=_capacity(stored.runs),
        intent_grace_s=executor.intent_grace_s,
        lost_grace_s=executor.lost_grace_s,
        settle_grace_s=executor.settle_grace_s,
    )
    return snapshot, trouble


def _look(active: Sequence[AttemptRow], executor: Executor) -> tuple[Look, Unreachable | None]:
    expected: dict[str, set[int]] = defaultdict(set)
    for row in active:
        expected[row.token].add(row.array_index or 0)
    since_s = min((row.created_s for row in active), default=0.0)
    try:
        return executor.look(expected, since_s), None
    except Unreachable as exc:
        return Look({}, False), exc


def _run_view(run: RunRow, rows: Sequence[AttemptRow], look: Look, paths: CampaignPaths) -> RunView:
    config = run_config(run)
    world_size = config.nodes * config.ranks()
    checkpoints = paths.run(run.name).checkpoints(run.config_hash)
    undecided = bool(rows) and run.state not in SETTLED  # a settled run needs no look at its files
    found = (
        checkpoint.newest_verified(checkpoints, run.config_hash, world_size, check_digests=False) if undecided else None
    )
    return RunView(
        run=run,
        attempts=tuple(_attempt_view(row, run, look, paths) for row in rows),
        retry=config.retry,
        world_size=world_size,
        global_batch=config.train.global_batch,
        micro_batch=config.train.micro_batch,
        steps_decide=config.command is None,
        on_cpu=trains_on_cpu(config),
        checkpoint_every=config.train.checkpoint_every,
        mem_mb=config.slurm.mem_mb,
        checkpoint_step=found.step if found else 0,
        begun=0 if run.generation else _begun(paths.run(run.name)),
    )


def _begun(run: RunPaths) -> int:
    """The highest generation with a claim."""
    return max((int(claim.parent.name[1:]) for claim in run.dir.glob("g[0-9]*/claim")), default=0)


def _attempt_view(row: AttemptRow, run: RunRow, look: Look, paths: CampaignPaths) -> AttemptView:
    if row.state in TERMINAL_ATTEMPT:
        return AttemptView(row)
    job = look.jobs.get((row.token, row.array_index or 0))
    files = paths.run(run.name).attempt(row.generation)
    found = (NodeOutcome.read(files.outcome(node)) for node in range(row.nodes))
    outcomes = tuple(outcome for outcome in found if outcome is not None)
    lines = _agent_lines(paths.batch(row.token), row, job) if job and job.terminal and not outcomes else ()
    heartbeat_s = None if job else _newest_heartbeat_s(files, row.nodes)
    return AttemptView(row, job, Start.read(files), outcomes, _claimed(files, row.token), lines, heartbeat_s)


def _claimed(files: AttemptPaths, token: str) -> bool:
    """Whether a job has the claim; we may have taken it ourselves and died before writing that down."""
    claim = read_json(files.claim)
    return files.claim.exists() if claim is None else claim.get("job_id") != revoked(token)


def _newest_heartbeat_s(files: AttemptPaths, nodes: int) -> float | None:
    beats = (read_json(files.heartbeat(node)) for node in range(nodes))
    return max((float(beat["ts"]) for beat in beats if beat), default=None)


def _agent_lines(batch: Path, row: AttemptRow, job: JobView) -> tuple[LogLine, ...]:
    """The end of the agents' own logs: why a job failed before an agent could say anything."""
    logs = [*batch.glob(f"{job.job_id}_*_log.err"), batch / f"{row.array_index or 0}.log"]
    return tuple(line for log in logs if log.is_file() for line in _tail(log))


def _tail(log: Path) -> list[LogLine]:
    lines = log.read_text(errors="replace").splitlines()
    first = max(0, len(lines) - AGENT_LOG_LINES)
    return [LogLine(log.name, number, text) for number, text in enumerate(lines[first:], first + 1)]


def _capacity(runs: Sequence[RunRow]) -> int | None:
    """How many attempts may be active at once: on this machine, what the spec says; Slurm has a queue of its own."""
    local = [run_config(run).local.parallel for run in runs if run.config.get("executor") == "local"]
    return max(local) if local else None
