"""Small worlds for the policy: rows and views with defaults, and what a world looks like after actions were taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from dscampaign.db.records import AttemptRow, CampaignRow, RunRow
from dscampaign.db.states import AttemptState, RunState
from dscampaign.jobs.agent.evidence import LogLine, NodeOutcome, RankEnd
from dscampaign.orchestrator.executors.base import JobView
from dscampaign.orchestrator.reconcile.actions import Action
from dscampaign.orchestrator.reconcile.snapshot import AttemptView, RunView, Snapshot
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
