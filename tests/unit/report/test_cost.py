"""What attempts cost in hours and joules, those too that did not complete."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dscampaign.db.records import RunState
from dscampaign.tests.support.planted import Planted, Try, results_at

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


def test_what_a_stopped_attempt_saved_is_not_lost(planted_url: PlantStore) -> None:
    tries = (Try(0, 60, "stopped", after_s=100.0), Try(60, 100))
    cost = results_at(planted_url(Planted("paused", (0.1,), tries=tries))).cost
    assert not cost.lost
    assert cost.around == pytest.approx(2 * (10 + 100 + 10))
