"""A machine that slows down while jobs with several runs train: pairs of a job find what repeats by themselves miss."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from dscampaign.orchestrator.report.compare.results import WorkloadResults, results_of
from dscampaign.orchestrator.report.compare.statistics import Standing
from dscampaign.orchestrator.report.measure.load import read_runs
from dscampaign.tests.faults.trial import SLURM, stand_in
from dscampaign.tests.support.campaigns import open_store, run_to_end, submit
from dscampaign.tests.support.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.nightly

SCRIPT = """
import math, os, random, time
from dscampaign.jobs.report import report
slower = math.exp(0.36 * (time.time() - float(os.environ["BEGAN_S"])) / 60)  # by 30 % in a minute
step_s = float(os.environ["STEP_S"]) * slower * math.exp(random.gauss(0.0, 0.002))
for step in range(1, 61):
    report(step, loss=1.0 / step, step_time=step_s)
"""
STEPS_S = (0.100, 0.090, 0.111)


def test_pairs_of_a_job_find_what_drift_hides(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    spec: dict[str, Any] = {"name": "paired", "python": str(stand_in(tmp_path)), "command": "train.py", "repeats": 3}
    spec |= {"train": {"steps": 60}, "ranks_per_node": 1, "env": {"BEGAN_S": str(time.time())}}
    spec |= {"slurm": {**SLURM, "runs_per_job": len(STEPS_S), "array_parallelism": 1}}
    (tmp_path / "paired.yaml").write_text(yaml.safe_dump({**spec, "matrix": {"env.STEP_S": list(map(str, STEPS_S))}}))
    store = open_store(f"sqlite:///{tmp_path}/campaign.db")
    campaign = submit(tmp_path / "paired.yaml", tmp_path, store)
    run_to_end(store, campaign, poll_s=1)
    (work,) = results_of(campaign, read_runs(store, campaign)).workloads
    store.close()
    assert_found(work)


def assert_found(work: WorkloadResults) -> None:
    base, *others = work.comparisons
    assert base.is_baseline
    assert {run.shared_job for run in base.condition.counted} == {run.shared_job for run in others[0].condition.counted}
    for one, step_s, order in zip(others, STEPS_S[1:], (Standing.FASTER, Standing.SLOWER), strict=True):
        truth, paired, alone = STEPS_S[0] / step_s, one.times_baseline, one.times_unpaired
        assert one.paired_by == "job"
        assert paired
        assert alone
        assert paired.value == pytest.approx(truth, rel=0.03)
        assert (alone.high or 1) / (alone.low or 1) > 1.1  # as wide as the difference
        assert (one.paired_width or 1) < 0.5
        assert one.order is order
    assert "paired by job" in work.basis
