"""Whose fault a mistake is: only what the whole cluster shows is the user's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dscampaign.db.states import RunState
from dscampaign.orchestrator.reconcile.actions import SetRun, Submit
from dscampaign.orchestrator.reconcile.decide import decide
from dscampaign.orchestrator.reconcile.snapshot import RunView
from dscampaign.orchestrator.spec.retry_section import RetryConfig
from dscampaign.tests.support.policy_world import ended_row, of_kind, run_row, run_view, snapshot


def ended(run_id: int, kind: str, host: str, rule: str = "", **values: Any) -> RunView:
    """A run whose only attempt ended so on that node."""
    evidence = {"reason": "cannot load MPI library", "rule": rule, "host": host, "nodes": [{"host": host}]}
    run = run_row(id=run_id, name=f"r{run_id}", generation=1)
    return run_view(ended_row(1, kind, run_id=run_id, evidence=evidence, **values), run=run)


TRAINED = ended(2, "completed", "n2", last_step=100)


@pytest.mark.parametrize("rule", ["no-mpi", "device-ordinal"])
def test_what_one_node_alone_shows_is_tried_on_another(rule: str) -> None:
    actions = decide(snapshot(ended(1, "deterministic", "n1", rule), TRAINED))
    [submit] = of_kind(Submit, actions)
    assert "on n1 alone" in submit.why
    assert "n1" in submit.exclude


def test_even_what_one_node_alone_shows_is_not_tried_for_ever() -> None:
    first = ended(1, "deterministic", "n1", "no-mpi")
    rows = [replace(first.attempts[0].row, id=number, generation=number) for number in range(1, 10)]
    shown = run_view(*rows, run=run_row(id=1, name="r1", generation=len(rows)), retry=RetryConfig(infra=8))
    actions = decide(snapshot(shown, TRAINED))
    assert not of_kind(Submit, actions)
    assert RunState.FAILED in {change.state for change in of_kind(SetRun, actions)}


@pytest.mark.parametrize(
    "others",
    [
        (),  # nobody has trained anywhere
        (ended(2, "completed", "n1", last_step=100),),  # the node is good enough for others
        (TRAINED, ended(3, "completed", "n1", last_step=100)),  # as is another one
        (TRAINED, ended(3, "deterministic", "n3", "no-mpi")),  # two nodes show it
    ],
)
def test_what_no_other_node_contradicts_is_the_user_s_mistake(others: tuple[RunView, ...]) -> None:
    actions = decide(snapshot(ended(1, "deterministic", "n1", "no-mpi"), *others))
    assert not of_kind(Submit, actions)
    assert RunState.FAILED in {change.state for change in of_kind(SetRun, actions)}


def test_a_mistake_of_a_run_s_own_is_never_the_node_s() -> None:
    assert not of_kind(Submit, decide(snapshot(ended(1, "deterministic", "n1", "no-file"), TRAINED)))
