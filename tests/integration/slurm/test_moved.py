"""A queued job of a run goes where the spec now sends it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dscampaign.db.states import RunState
from dscampaign.orchestrator.executors.job_request import attempt_paths
from dscampaign.orchestrator.reconcile.loop import Reconciler
from dscampaign.tests.faults.trial import SLURM, stand_in
from dscampaign.tests.support.campaigns import open_store, run_to_end, submit

pytestmark = pytest.mark.cluster


@pytest.mark.usefixtures("slurm")
def test_a_job_is_queued_again_in_another_partition(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nprint('PARTITION', os.environ['SLURM_JOB_PARTITION'])\n")
    values = {"name": "moved", "ranks_per_node": 1, "python": str(stand_in(tmp_path)), "env": {"DS_ACCELERATOR": "cpu"}}
    spec, store = tmp_path / "spec.yaml", open_store(f"sqlite:///{tmp_path}/campaign.db")
    for partition, begin in (("scavenge", "now+1hour"), ("h100", "now")):
        asked = {**SLURM, "partition": partition, "begin": begin}
        spec.write_text(yaml.safe_dump({**values, "command": "train.py", "slurm": asked}))
        campaign = submit(spec, tmp_path, store)
        reconciler = Reconciler(store, campaign)
        reconciler.run_pass()
        reconciler.close()
    done = run_to_end(store, campaign)
    store.close()
    assert set(done.states().values()) == {RunState.COMPLETED}
    [attempts] = done.attempts.values()
    assert [attempt.failure_class for attempt in attempts] == ["cancelled", "completed"]
    (log,) = attempt_paths(attempts[-1]).logs.glob("*_rank0.log")
    assert "PARTITION h100" in log.read_text()
