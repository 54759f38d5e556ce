"""Whose fault a mistake is: only what the whole cluster shows is the user's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dscampaign.db.states import RunState
from dscampaign.orchestrator.reconcile.actions import SetRun, Submit
from dscampaign.orchestrator.reconcile.decide import decide
from dscampaign.orchestrator.reconcile.snapshot import RunView
from dscampaign.orchestrator.spec.sections import RetryConfig
from dscampaign.tests.support.policy_world import ended_row, of_kind, run_row, run_view, snapshot


def ended(run_id: int, kind: str, host: str, rule: str = "", **values: Any) -> RunView:
    """A run whose only attempt ended so on that node."""
    evidence = {"reason": "cannot load MPI library", "rule": rule, "host": host, "nodes": [{"host": host}]}
    run = run_row(id=run_id, name=f"r{run_id}", generation=1)
    return run_view(ended_row(1, kind, run_id=run_id, evidence=evidence, **values), run=run)


TRAINED = ended(2, "completed", "n2", last_step=100)


def test_an_error_of_one_node_is_tried_on_another() -> None:
    actions = decide(snapshot(ended(1, "deterministic", "n1", "device-ordinal"), TRAINED))
    [submit] = of_kind(Submit, actions)
    assert "on n1 alone" in submit.why
    assert "n1" in submit.exclude


@pytest.mark.parametrize(
    "others",
    [
        (),  # nobody has trained anywhere
        (ended(2, "completed", "n1", last_step=100),),  # the node is good enough for others
        (TRAINED, ended(3, "completed", "n1", last_step=100)),  # as is another one
        (TRAINED, ended(3, "deterministic", "n3", "device-ordinal")),  # two nodes show it
    ],
)
def test_an_error_without_a_healthy_node_is_a_mistake(others: tuple[RunView, ...]) -> None:
    actions = decide(snapshot(ended(1, "deterministic", "n1", "device-ordinal"), *others))
    assert not of_kind(Submit, actions)
    assert RunState.FAILED in {change.state for change in of_kind(SetRun, actions)}


def test_a_mistake_of_a_run_s_own_is_never_the_node_s() -> None:
    assert not of_kind(Submit, decide(snapshot(ended(1, "deterministic", "n1", "no-file"), TRAINED)))


# -- what fails before a rank has begun ------------------------------------------------------------------------


def not_begun(rule: str = "no-interpreter", python: str | None = None) -> RunView:
    """A run that failed before a rank had begun."""
    view = ended(1, "deterministic", "", rule)
    row = view.attempts[0].row
    run = replace(view.run, config={**view.run.config, "python": python})
    row = replace(row, evidence={**row.evidence, "begun": False, "place": "no-interpreter here"})
    return run_view(row, run=run)


@pytest.mark.parametrize("rule", ["no-interpreter", "no-module", "demand"])
def test_a_failure_before_the_ranks_passes_once_the_interpreter_has_trained(rule: str) -> None:
    """The environment was renamed, a module or a payload not visible yet: another run has trained with all of them."""
    trained = replace(snapshot(not_begun(rule=rule)), trained_with=lambda: frozenset({""}))
    [submit] = of_kind(Submit, decide(trained))
    assert "(1 of 8)" in submit.why


@pytest.mark.parametrize("view", [not_begun(), not_begun(python="/no/such/python"), not_begun(rule="not-trusted")])
def test_an_interpreter_that_never_trained_is_the_user_s_mistake(view: RunView) -> None:
    with_another = "/envs/a/bin/python" if view.run.config["python"] is None else ""
    other = {with_another} if view.attempts[0].row.evidence["rule"] != "not-trusted" else {""}
    actions = decide(replace(snapshot(view), trained_with=lambda: frozenset(other)))
    assert not of_kind(Submit, actions)


# -- the second witness ----------------------------------------------------------------------------------------

PLACE = {"place": "builtins.ValueError at train.py:9 main"}


def tried(*ends: tuple[str, str]) -> RunView:
    """A run whose attempts ended so, each on its node, with the same error at the same place."""
    rows = [
        ended_row(
            number, kind, run_id=1, evidence={"reason": "ValueError: no", "host": host, "rule": "demand", **PLACE}
        )
        for number, (kind, host) in enumerate(ends, 1)
    ]
    return run_view(*rows, run=run_row(id=1, name="r1", generation=len(rows)), retry=RetryConfig(infra=8))


@pytest.mark.parametrize(
    ("ends", "again"),
    [
        ((("crash", "n1"), ("crash", "n1")), False),
        ((("node", "n1"), ("node", "n1")), True),  # the node is suspected, not the script
        ((("node", "n1"), ("node", "n2")), False),
        ((("node", "n1"), ("crash", "n2")), False),
        ((("crash", "n1"), ("node", "n1")), True),
    ],
)
def test_the_same_error_at_the_same_place_twice_is_final(ends: tuple[tuple[str, str], ...], again: bool) -> None:
    assert bool(of_kind(Submit, decide(snapshot(tried(*ends))))) is again


# -- what fails before anything ran ----------------------------------------------------------------------------


def not_started(rule: str, kind: str, *hosts: str) -> RunView:
    """A run that ended on each of these nodes before anything ran."""
    first = ended(1, kind, hosts[0], rule).attempts[0].row
    rows = [
        replace(
            first,
            id=number,
            generation=number,
            evidence={**first.evidence, "host": host, "place": rule, "begun": False},
        )
        for number, host in enumerate(hosts, 1)
    ]
    return run_view(*rows, run=run_row(id=1, name="r1", generation=len(rows)))


STARTS = [("set-up", "crash"), ("slurm-launch", "node")]


@pytest.mark.parametrize(("rule", "kind"), STARTS)
def test_a_failed_first_start_is_tried_on_another_node(rule: str, kind: str) -> None:
    [submit] = of_kind(Submit, decide(snapshot(not_started(rule, kind, "n1"), nodes=2)))
    assert submit.exclude == ("n1",)
    [alone] = of_kind(Submit, decide(snapshot(not_started(rule, kind, "n1"), nodes=1)))
    assert alone.exclude == ()


@pytest.mark.parametrize(("rule", "kind"), STARTS)
def test_failed_first_starts_on_several_nodes_are_a_mistake_unless_others_trained(rule: str, kind: str) -> None:
    actions = decide(snapshot(not_started(rule, kind, "n1", "n2"), nodes=8))
    assert not of_kind(Submit, actions)
    [change] = of_kind(SetRun, actions)
    assert change.state is RunState.FAILED
    assert "retrying would not help" in change.reason
    others = replace(snapshot(not_started(rule, kind, "n1", "n2"), TRAINED), trained_with=lambda: frozenset({""}))
    assert of_kind(Submit, decide(others))
