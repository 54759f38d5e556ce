"""Verdicts on made-up evidence."""

from __future__ import annotations

from typing import Any

from dscampaign.jobs.agent.evidence import NodeOutcome, RankEnd
from dscampaign.orchestrator.executors.base import JobView
from dscampaign.orchestrator.failures.classify import classify
from dscampaign.orchestrator.failures.evidence import Ended
from dscampaign.orchestrator.failures.verdict import Verdict
from dscampaign.tests.support.policy_world import job, outcome, rank_error

KILLED = RankEnd(0, None, None, 4100), RankEnd(1, None, None, 4101)
GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1024"
NCCL = "NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited or there was a network error, NCCL version 2.21"


def judge(*outcomes: NodeOutcome, state: JobView | str | None = "FAILED", **values: Any) -> Verdict:
    """The verdict on an attempt of one node that was to make 100 steps on GPUs."""
    view = job(state) if isinstance(state, str) else state
    defaults = {"nodes": max(1, len(outcomes)), "target_step": 100, "steps_decide": True, "on_cpu": False}
    return classify(Ended(view, outcomes, **{**defaults, **values}))


def raised(kind: str, message: str, **values: Any) -> NodeOutcome:
    """Rank 0 ended by this exception, rank 1 was ended by the launcher."""
    return outcome(rank_error(0, kind, message), RankEnd(1, None, None), **values)


SITE = "/env/lib/python3.11/site-packages"
USER = ("/u/train.py", 9, "main", "")
"""A frame of the user's own code."""


def judge_error(
    kind: str, message: str = "", *frames: tuple[str, int, str, str], last_step: int | None = None, **values: Any
) -> Verdict:
    """The verdict where both of two ranks recorded such an exception; before the first of 1000 steps by default."""
    record = {"type": kind, "message": message, "ts": 10.0, "frames": [list(frame) for frame in frames]}
    left = outcome(RankEnd(0, 1, record), RankEnd(1, 1, record), last_step=last_step, **values)
    return judge(left, target_step=1000)


def meaning(verdict: Verdict) -> str:
    """The class, or that of a likely mistake, which is tried once more."""
    return verdict.suspect or verdict.kind
