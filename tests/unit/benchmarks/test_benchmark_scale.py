"""What a further run costs, from measurements of campaigns of several sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dscampaign.benchmarks.scale import Cost, growth, make_campaign
from dscampaign.benchmarks.shared.simulated_watch import record_campaign, watch
from dscampaign.db import queries
from dscampaign.db.states import RunState
from dscampaign.db.store import Store

pytestmark = pytest.mark.nightly


def test_each_further_run_costs_what_was_added_by_the_runs_that_were_added() -> None:
    found = {
        10_000: {"plan": Cost(9.0, 1.9, 118.0, 0, 0.0, 0)},
        1_000: {"plan": Cost(9.0, 1.0, 100.0, 0, 0.0, 0)},
        100_000: {"plan": Cost(9.0, 19.9, 298.0, 0, 0.0, 0)},
    }
    [(name, steps)] = growth(found).items()
    assert name == "plan"
    assert steps == [pytest.approx((0.1, 2.0)), pytest.approx((0.2, 2.0))]


def test_a_campaign_on_the_simulated_cluster_ends_whole(tmp_path: Path) -> None:
    env = make_campaign(tmp_path, 20)
    found = watch(tmp_path, record_campaign(tmp_path), env)
    # two of the runs at a time, from the pass after their submission on; one more pass sees the end of the last
    assert found.passes == 13
    store = Store.open(f"sqlite:///{tmp_path}/campaign/campaign.db")
    with store.read() as conn:
        [campaign] = queries.list_campaigns(conn)
        runs = queries.status(conn, campaign.id)
    store.close()
    assert {(run.state, run.step, run.generation) for run in runs} == {(RunState.COMPLETED, 100, 1)}
