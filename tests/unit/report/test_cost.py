"""Attempts: their cost in hours and joules, and those that failed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dscampaign.db import leases, queries
from dscampaign.db.campaigns import campaign_totals
from dscampaign.db.states import AttemptState, RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.reconcile.lease import lease_name
from dscampaign.orchestrator.report.measure.cost import failed_attempts
from dscampaign.tests.support.planted import START_S, Planted, Try, results_at

PlantStore = Callable[..., str]


def test_a_cancelled_attempt_is_lost_but_for_its_steps(planted_url: PlantStore) -> None:
    tries = (Try(0, 60, "cancelled", after_s=100.0),)
    url = planted_url(Planted("dropped", (0.1,), tries=tries, state=RunState.CANCELLED))
    cost = results_at(url).cost
    assert cost.lost == {"cancelled": pytest.approx(2 * (10 + 100))}
    assert cost.training > 0
    assert cost.around == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("sampled", [True, False])
def test_the_energy_of_a_run_is_of_all_its_attempts_or_not_known(planted_url: PlantStore, *, sampled: bool) -> None:
    tries = (Try(0, 60, "node", sampled=sampled), Try(60, 100))
    run = results_at(planted_url(Planted("again", (0.1,), tries=tries, gpu="NVIDIA H100"))).runs[0]
    assert (run.gpus.energy_j is not None) is sampled
    assert run.gpus.power_w is not None


def test_an_attempt_without_a_job_costs_nothing(planted_url: PlantStore) -> None:
    """The report and the list of campaigns agree on the hours."""
    url = planted_url(Planted("lost", (0.1,), tries=(Try(0, 60, "lost"), Try(0, 100))))
    store = Store.open(url)
    with store.write() as conn:
        queries.update_attempt(conn, 1, gpu_seconds=0.0)
        listed = campaign_totals(conn, lambda _: 0.0)[1].rank_seconds
    store.close()
    cost = results_at(url).cost
    assert cost.lost.get("lost", 0.0) == 0.0
    assert cost.total == pytest.approx(sum(listed.values()))


def test_a_running_attempt_counts_until_it_was_last_looked_at(planted_url: PlantStore) -> None:
    """The report of a store that nobody reconciles says the same tomorrow."""
    url = planted_url(Planted("left", (0.1,), tries=(Try(0, 60, None),), state=RunState.RUNNING))
    store = Store.open(url)
    with store.write() as conn:
        queries.update_attempt(conn, 1, state=AttemptState.RUNNING, created_s=START_S, ended_s=None)
        leases.acquire_lease(conn, lease_name(1), "host:1:a", START_S + 100 - store.now(conn))
        lease = leases.read_lease(conn, lease_name(1))
    store.close()
    assert lease
    assert results_at(url).cost.total == pytest.approx(2 * (lease.expires_s - START_S - 5))


@pytest.mark.parametrize(
    ("asked", "devices"),
    [
        ({"slurm": {"gpus_per_node": "8"}, "ranks_per_node": 1}, 8),
        ({"slurm": {"gpus_per_node": "2"}, "ranks_per_node": 2}, 2),
        ({"slurm": {"gpus_per_node": "0", "gres": "gpu:h100:4"}, "ranks_per_node": 2}, 4),
        ({"slurm": {"gpus_per_node": "0"}, "ranks_per_node": 2}, 2),
    ],
)
def test_an_attempt_costs_the_gpus_that_it_holds(
    planted_url: PlantStore, asked: dict[str, Any], devices: float
) -> None:
    """As `limits.gpu_hours` counts them: a launcher of one rank a node holds all of the node's."""
    results = results_at(planted_url(Planted("run", (0.1,), ranks=asked["ranks_per_node"], config=asked)))
    (run,) = results.runs
    assert run.timing
    assert results.cost.training == pytest.approx(devices * run.timing.window_s)
    assert results.cost.around == pytest.approx(devices * 10.0)


@pytest.mark.parametrize(("start_step", "then"), [(None, "attempt 2"), (0, "attempt 2 from step 0")])
def test_where_a_script_of_its_own_went_on_is_said_only_once_it_is_known(start_step: int | None, then: str) -> None:
    run: Any = SimpleNamespace(name="r", state=RunState.RUNNING, reason="")
    same = {"micro_batch": None, "changes": "", "config_hash": "h", "id": 1}
    first: Any = SimpleNamespace(generation=1, failure_class="crash", evidence={"reason": "boom"}, **same)
    later: Any = SimpleNamespace(generation=2, failure_class=None, start_step=start_step, **same)
    [found] = failed_attempts(run, [first, later], {})
    assert found.then == then


@pytest.mark.parametrize("reason", ["KeyError: 'x' · look at x · it failed so three times", ""])
def test_the_last_failure_has_the_reason_of_the_run(reason: str) -> None:
    run: Any = SimpleNamespace(name="r", state=RunState.FAILED, reason=reason)
    attempt: Any = SimpleNamespace(generation=1, failure_class="crash", evidence={"reason": "KeyError: 'x'"})
    [found] = failed_attempts(run, [attempt], {})
    assert (found.reason, found.then) == (reason or "KeyError: 'x'", "no further try")
