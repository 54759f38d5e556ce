"""Bad nodes: whom a strike hits, how long it lasts, and that a campaign never runs out of nodes by itself."""

from __future__ import annotations

import pytest

from dscampaign.orchestrator.reconcile.attempt_history import EndedAttempt, ended_attempt, excluded
from dscampaign.tests.support.policy_world import NOW_S, ended_row

DAY_H = 24.0


def struck(kind: str, host: str = "n1", ago_h: float = 1.0) -> EndedAttempt:
    """An attempt that ended on that node."""
    seen_s = NOW_S - ago_h * 3600
    return ended_attempt(ended_row(1, kind, evidence={"reason": kind, "host": host, "seen_s": seen_s}))


@pytest.mark.parametrize(("kind", "needed"), [("gpu", 1), ("foreign_oom", 1), ("node", 2), ("gpu_fault", 2)])
def test_a_certain_hardware_fault_excludes_its_node_at_once(kind: str, needed: int) -> None:
    strikes = [struck(kind) for _ in range(needed)]
    assert excluded(strikes, NOW_S, DAY_H, 40) == ("n1",)
    assert excluded(strikes[1:], NOW_S, DAY_H, 40) == ()


@pytest.mark.parametrize("kind", ["crash", "hang", "oom", "deterministic", "preempted", "completed", "storage"])
def test_failures_of_the_run_itself_are_no_strike(kind: str) -> None:
    assert excluded([struck(kind)] * 9, NOW_S, DAY_H, 40) == ()


def test_strikes_expire_those_of_foreign_memory_sooner() -> None:
    assert excluded([struck("gpu", ago_h=25)], NOW_S, DAY_H, 40) == ()
    assert excluded([struck("node", ago_h=25), struck("node")], NOW_S, DAY_H, 40) == ()
    assert excluded([struck("foreign_oom", ago_h=3)], NOW_S, DAY_H, 40) == ()
    assert excluded([struck("gpu")], NOW_S, 0.0, 40) == ()
    assert excluded([struck("gpu", ago_h=-20)], NOW_S, DAY_H, 40) == ()  # the clock was set back


def test_strikes_count_for_all_runs_and_need_a_node() -> None:
    assert excluded([struck("node", "n3"), struck("gpu_fault", "n3"), struck("node", "n4")], NOW_S, DAY_H, 40) == (
        "n3",
    )
    assert excluded([struck("gpu", "")], NOW_S, DAY_H, 40) == ()


def test_a_quarter_of_the_nodes_at_most_the_worst_first() -> None:
    strikes = [*(struck("gpu", f"n{i}") for i in range(6)), struck("gpu", "n5"), struck("gpu", "n3", ago_h=0.5)]
    assert excluded(strikes, NOW_S, DAY_H, 8) == ("n3", "n5")
    assert excluded(strikes, NOW_S, DAY_H, 3) == ()
    assert excluded(strikes, NOW_S, DAY_H, None) == ("n3",)
