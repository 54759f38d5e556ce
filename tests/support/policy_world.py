"""Small worlds for the policy: rows and views with defaults, and what a world looks like after actions were taken."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from dscampaign.db.records import AttemptRow, CampaignRow, RunRow
from dscampaign.db.states import AttemptState, RunState
from dscampaign.jobs.agent.evidence import LogLine, NodeOutcome, RankEnd
from dscampaign.orchestrator.executors.base import JobView
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.reconcile.actions import (
    Action,
    Adopt,
    CancelJob,
    Finish,
    MarkAttempt,
    NoteAbsence,
    Revoke,
    SetRun,
    Submit,
)
from dscampaign.orchestrator.reconcile.decide import decide
from dscampaign.orchestrator.reconcile.snapshot import ABSENCE, AttemptView, RunView, Snapshot
from dscampaign.orchestrator.spec.model import RunConfig, TrainConfig
from dscampaign.orchestrator.spec.slurm_section import SlurmConfig

_A = TypeVar("_A")

NOW_S = 1_000_000.0

_TRAIN = {"global_batch": 64, "micro_batch": 8, "checkpoint_every": 10}

CAMPAIGN = CampaignRow(1, "c", "", "h", "/shared", "slurm", "active", {}, 0.0)


def run_row(**values: Any) -> RunRow:
    """A run of four samples a step on each of two ranks that nobody has started."""
    defaults: dict[str, Any] = {
        "id": 1,
        "campaign_id": 1,
        "name": "r1",
        "params": {},
        "config": {},
        "config_hash": "hash",
        "repeat": 0,
        "state": RunState.PENDING,
        "reason": "",
        "desired": "run",
        "generation": 0,
        "retry_epoch": 0,
        "target_step": 100,
        "ordinal": 0,
        "not_before_s": None,
        "updated_s": 0.0,
    }
    return RunRow(**{**defaults, **values})


def attempt_row(generation: int = 1, state: AttemptState = AttemptState.RUNNING, **values: Any) -> AttemptRow:
    """An attempt with a job, `7_0` of token `t1` for the first generation."""
    defaults: dict[str, Any] = {
        "id": generation,
        "run_id": 1,
        "generation": generation,
        "token": f"t{generation}",
        "array_index": 0,
        "job_id": f"{6 + generation}_0",
        "submit_time_s": NOW_S - 5000,
        "created_s": NOW_S - 5000,
        "state": state,
        "config_hash": "hash",
        "retry_epoch": 0,
        "micro_batch": 8,
        "accumulation": 4,
        "world_size": 2,
        "nodes": 1,
        "start_step": 0,
        "last_step": None,
        "failure_class": None,
        "evidence": {},
        "heartbeat_s": None,
        "gpu_seconds": 0.0,
        "spool_path": "/dev/null",
        "spool_offset": 0,
        "started_s": NOW_S - 4000,
        "ended_s": None,
        "executor": "slurm",
        "changes": "",
        "memory_key": None,
        "predicted_gb": None,
    }
    return AttemptRow(**{**defaults, **values})


def ended_row(
    generation: int, kind: str, *, ended_s: float = NOW_S - 4000, reason: str = "", **values: Any
) -> AttemptRow:
    """An attempt that ended long ago."""
    states = {"completed": AttemptState.COMPLETED, "cancelled": AttemptState.CANCELLED}
    evidence = {"reason": reason or kind, "hint": "", "seen_s": ended_s}
    known = {"failure_class": kind, "evidence": evidence, "ended_s": ended_s}
    return attempt_row(generation, states.get(kind, AttemptState.FAILED), **{**known, **values})


def job(state: str, token: str = "t1", **values: Any) -> JobView:
    """What Slurm shows of the job of that token; one that is over ended long ago."""
    defaults = {"ended_s": NOW_S - 3000, "started_s": NOW_S - 4000}
    return JobView(token, 0, f"{6 + int(token[1:])}_0", state, **{**defaults, **values})


def rank_error(rank: int, kind: str, message: str, ts: float = 10.0, code: int = 1) -> RankEnd:
    """A rank that wrote down why it ended."""
    return RankEnd(rank, code, {"type": kind, "message": message, "trace": [], "ts": ts})


def outcome(*ranks: RankEnd, **values: Any) -> NodeOutcome:
    """One node's evidence; by default two ranks that ended well at step 100."""
    defaults: dict[str, Any] = {
        "generation": 1,
        "job_id": "7_0",
        "node_rank": 0,
        "host": "n1",
        "launcher_exit": 0 if not ranks else 1,
        "ended_by": "",
        "started_s": NOW_S - 4000,
        "ended_s": NOW_S - 3000,
        "start_step": 0,
        "last_step": 100 if not ranks else None,
        "ranks": ranks or (RankEnd(0, 0, None), RankEnd(1, 0, None)),
    }
    return NodeOutcome(**{**defaults, **values})


def log_lines(*texts: str) -> tuple[LogLine, ...]:
    """These lines, as found in a launcher's log."""
    return tuple(LogLine("launcher-0.log", number, text) for number, text in enumerate(texts, 1))


def run_view(*attempts: AttemptView | AttemptRow, run: RunRow | None = None, **values: Any) -> RunView:
    """A run with these attempts, 64 samples a step, micro-batch 8 on 2 ranks.

    `retry`, `slurm` and fields of `train` go into its configuration.
    """
    train = {name: values.pop(name, value) for name, value in _TRAIN.items()}
    sections = {name: values.pop(name) for name in ("retry", "slurm") if name in values}
    sections.setdefault("slurm", SlurmConfig(gpus_per_node="2"))
    built = RunConfig(ranks_per_node=2, train=TrainConfig().model_copy(update=train), **sections)
    config = values.pop("config", built)
    views = tuple(a if isinstance(a, AttemptView) else AttemptView(a) for a in attempts)
    newest = views[-1].row.generation if views else 0
    defaults: dict[str, Any] = {
        "run": run or run_row(generation=newest),
        "attempts": views,
        "read_config": lambda: config,
    }
    return RunView(**{**defaults, **values})


def snapshot(*runs: RunView, **values: Any) -> Snapshot:
    """A moment at which everything could be asked."""
    defaults: dict[str, Any] = {
        "now_s": NOW_S,
        "campaign": CAMPAIGN,
        "runs": runs,
        "listed": True,
        "complete": True,
        "capacity": None,
        "intent_grace_s": 60.0,
        "lost_grace_s": 600.0,
        "outcome_grace_s": 10.0,
    }
    return Snapshot(**{**defaults, **values})


def of_kind(kind: type[_A], actions: Iterable[Action]) -> list[_A]:
    """The actions of one kind."""
    return [action for action in actions if isinstance(action, kind)]


@dataclass
class Simulation:
    """A campaign of one node a run in which every action succeeds at once; the test plays Slurm.

    Attributes:
        jobs: what Slurm shows, by token.
        endings: what the agents of an attempt left behind, by token.
    """

    runs: list[RunView]
    now_s: float = NOW_S
    jobs: dict[str, JobView] = field(default_factory=dict)
    endings: dict[str, NodeOutcome] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def snapshot(self) -> Snapshot:
        """The world now."""
        runs = (replace(view, attempts=tuple(self._seen(a.row) for a in view.attempts)) for view in self.runs)
        return snapshot(*runs, now_s=self.now_s, **self.options)

    def end(self, state: str | None, values: dict[str, Any]) -> None:
        """Every active attempt ends this way; None: its job is gone and nobody knows how."""
        for view in self.runs:
            if view.latest and view.latest.active:
                token = view.latest.row.token
                if state is None:
                    del self.jobs[token]
                else:
                    self.jobs[token] = job(state, token)
                    self.endings[token] = outcome(**values)
        if state is None:
            self.settle_down()  # a pass sees that it is absent
            self.now_s += 601

    def settle_down(self, most: int = 4) -> list[Action]:
        """Passes until one has nothing to do, after the end was seen, the next one submitted and seen to wait."""
        done: list[Action] = []
        for _ in range(most):
            actions = decide(self.snapshot())
            if not actions:
                return done
            self.take(actions)
            done += actions
        raise AssertionError(f"still something to do: {actions}")

    def take(self, actions: Iterable[Action]) -> None:
        """What the store and Slurm are like after these actions."""
        for action in actions:
            match action:
                case SetRun():
                    values = {"state": action.state, "reason": action.reason, "not_before_s": action.not_before_s}
                    self._set_run(action.run.id, **values, cause=action.cause)
                case Submit():
                    self._submit(action)
                case Finish():
                    self._set_attempt(action.attempt, **_finished(action))
                case MarkAttempt():
                    self._set_attempt(action.attempt, state=action.state, started_s=action.started_s)
                case NoteAbsence():
                    known = {ABSENCE: asdict(action.absence)} if action.absence else {}
                    self._set_attempt(action.attempt, evidence=known)
                case Adopt():
                    self._set_attempt(action.attempt, state=AttemptState.QUEUED, job_id=action.job_id)
                case Revoke():
                    kind = FailureClass.LOST if action.wanted else FailureClass.CANCELLED
                    ended = {"failure_class": kind, "evidence": {"reason": "no job", "seen_s": self.now_s}}
                    self._set_attempt(action.attempt, state=kind.policy.attempt, **ended)
                case CancelJob():
                    self.jobs[action.attempt.token] = job("CANCELLED", action.attempt.token)

    def _seen(self, row: AttemptRow) -> AttemptView:
        ended = self.endings.get(row.token)
        return AttemptView(row, self.jobs.get(row.token), outcomes=(ended,) if ended else (), claimed=bool(ended))

    def _submit(self, action: Submit) -> None:
        token = f"t{100 * action.run.id + action.generation}"
        row = attempt_row(
            action.generation,
            AttemptState.QUEUED,
            id=100 * action.run.id + action.generation,
            run_id=action.run.id,
            token=token,
            micro_batch=action.micro_batch,
            retry_epoch=action.run.retry_epoch,
            config_hash=action.run.config_hash,
            start_step=None,
            created_s=self.now_s,
        )
        self.jobs[token] = job("PENDING", token, ended_s=None)
        index = self._index(action.run.id)
        view = self.runs[index]
        self.runs[index] = replace(view, attempts=(*view.attempts, AttemptView(row)))
        self._set_run(action.run.id, state=RunState.QUEUED, not_before_s=None, generation=action.generation)

    def _set_run(self, run_id: int, **values: Any) -> None:
        index = self._index(run_id)
        self.runs[index] = replace(self.runs[index], run=replace(self.runs[index].run, **values))

    def _set_attempt(self, row: AttemptRow, **values: Any) -> None:
        index = self._index(row.run_id)
        attempts = (
            AttemptView(replace(a.row, **values)) if a.row.id == row.id else a for a in self.runs[index].attempts
        )
        self.runs[index] = replace(self.runs[index], attempts=tuple(attempts))

    def _index(self, run_id: int) -> int:
        return next(i for i, view in enumerate(self.runs) if view.run.id == run_id)


def _finished(action: Finish) -> dict[str, Any]:
    verdict = action.verdict
    return {
        "state": action.state,
        "failure_class": verdict.kind,
        "evidence": {"reason": verdict.reason, "hint": verdict.hint, "seen_s": action.seen_s},
        "ended_s": max((o.ended_s for o in action.ended.outcomes), default=action.seen_s),
        "start_step": action.ended.start_step,
        "last_step": action.ended.last_step,
    }
