"""What all campaigns of a store have used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import bulk, queries
from dscampaign.db.leases import acquire_lease
from dscampaign.db.records import NewAttempt, NewRun
from dscampaign.db.states import AttemptState
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.status import read_overview
from dscampaign.orchestrator.pages.rows import OVERVIEW
from dscampaign.orchestrator.reconcile.lease import lease_name

ON_CPUS = {"slurm": {"gpus_per_node": "0"}, "ranks_per_node": 2}


def record(store: Store, name: str, config: Mapping[str, Any], ranks: int, **attempt: Any) -> None:
    """A campaign with one run of one attempt; times are seconds from now."""
    with store.write() as conn:
        now_s = store.now(conn)
        campaign = queries.insert_campaign(conn, name=name, spec="", spec_hash="", dir="/c", executor="slurm")
        bulk.insert_runs(conn, campaign, [NewRun("run", {}, config, "h", 0)])
        (run,) = queries.runs(conn, campaign)
        new = NewAttempt(run.id, 1, name, "h", None, None, ranks, 1, "slurm", "spool")
        attempt_id = bulk.insert_attempts(conn, [new])[0].id
        values = {key: value + now_s if key in ("started_s", "created_s") else value for key, value in attempt.items()}
        queries.update_attempt(conn, attempt_id, **values)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(f"sqlite:///{tmp_path}/campaign.db", create=True)


@pytest.mark.parametrize(
    ("config", "ranks", "hours"),
    [
        ({"slurm": {"gpus_per_node": "8"}, "ranks_per_node": 1}, 1, 8),
        ({"slurm": {"gpus_per_node": "h100:8"}, "ranks_per_node": 8}, 8, 8),
        ({"slurm": {"gpus_per_node": "8", "gres": "gpu:4"}, "ranks_per_node": 2}, 2, 4),
        ({"slurm": {"gpus_per_node": "8", "gpus_per_run": 2}, "ranks_per_node": 1}, 1, 2),
        ({"slurm": {"gres": "gpu:8", "gpus_per_run": 2, "gpus_per_node": "8"}, "ranks_per_node": 2}, 2, 2),
        (ON_CPUS, 2, 2),
        ({}, 2, 2),
    ],
)
def test_hours_count_the_gpus_of_attempts(store: Store, config: dict[str, Any], ranks: int, hours: float) -> None:
    record(store, "ended", config, ranks, state=AttemptState.COMPLETED, gpu_seconds=3600.0 * ranks)
    record(store, "running", config, ranks, state=AttemptState.RUNNING, started_s=-3600, created_s=-3600)
    assert [one.device_hours for one in read_overview(store)] == pytest.approx([hours, hours], rel=0.01)


def test_a_job_counts_until_the_last_look_at_it(store: Store) -> None:
    record(store, "left", {}, 1, state=AttemptState.RUNNING, started_s=-4 * 86_400, created_s=-4 * 86_400)
    with store.write() as conn:
        (campaign,) = queries.list_campaigns(conn)
        acquire_lease(conn, lease_name(campaign.id), "host:1:a", 3600.0 - 4 * 86_400)
    (found,) = read_overview(store)
    assert (0.99 <= found.device_hours <= 1.01, OVERVIEW["device-hours"](found)) == (True, "1")
