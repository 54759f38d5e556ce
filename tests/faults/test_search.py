"""A search while the job of its reconciler or a trial is killed: no trial is lost, none is trained twice."""

from __future__ import annotations

import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from dscampaign.db import leases, queries
from dscampaign.db.records import RunRow
from dscampaign.db.states import AttemptState, RunState, Stage
from dscampaign.orchestrator.reconcile import search
from dscampaign.orchestrator.reconcile.lease import LeaseHolder, lease_name
from dscampaign.tests.integration.slurm.test_detached import Shell
from dscampaign.tests.support.campaigns import Observed, observe, open_store
from dscampaign.tests.support.postgres import PostgresServer
from dscampaign.tests.support.slurm_cluster import SlurmCluster

SCRIPT = """\
import os, sys, time
from pathlib import Path
from dscampaign import report
folder = Path(os.environ["CAMPAIGN_RUN_DIR"])
done = folder / "done"
first = int(done.read_text()) if done.exists() else 0
for step in range(first + 1, int(os.environ["CAMPAIGN_STEPS"]) + 1):
    report(step, loss=float(sys.argv[1]) + 1 / step, step_time=0.1)
    with (folder / "ledger").open("a") as ledger:
        ledger.write(f"{step}\\n")
    done.write_text(str(step))
"""

SEARCH = {
    "parameters": {"rate": {"uniform": [0, 1]}},
    "sampler": "random",
    "trials": 5,
    "parallel": 2,
    "halving": {"from": 2, "to": 6},
    "confirm": {"top": 1, "repeats": 1},
}


@pytest.mark.nightly
def test_the_end_of_a_detached_reconciler_and_of_a_trial_in_a_search(
    slurm: SlurmCluster, postgres: PostgresServer, tmp_path: Path
) -> None:
    shell = Shell(tmp_path, slurm)
    hold = tmp_path / "hold"
    wait = "while Path(sys.argv[2]).exists():\n        time.sleep(0.1)"
    (tmp_path / "train.py").write_text(SCRIPT.replace("report(step", f"{wait}\n    report(step"))
    url = shell.env["CAMPAIGN_STORE"] = postgres.new_database()
    more = {"search": {**SEARCH, "trials": 6, "parallel": 3}, "train": {}, "command": f"train.py {{rate}} {hold}"}
    shell.type("db", "upgrade")
    shell.type("submit", shell.spec("tuned", **more), "--yes")
    store = open_store(url)
    with store.read() as conn:
        campaign = queries.campaign_by_name(conn, "tuned")
    assert campaign

    seen = partial(observe, store, campaign)

    def measured(least: int) -> bool:
        return sum(event.kind == search.MEASURED for event in seen().events()) >= least

    def running() -> list[str]:
        rows = (row for attempts in seen().attempts.values() for row in attempts)
        return [row.job_id for row in rows if row.state is AttemptState.RUNNING and row.job_id]

    def reconciler_is_away() -> bool:
        return not shell.jobs()

    shell.until("the first trials", lambda: measured(2))
    with store.read() as conn:
        lease = leases.read_lease(conn, lease_name(campaign.id))
    assert lease
    os.kill(int(LeaseHolder.parse(lease.holder).pid), signal.SIGKILL)
    slurm.run("scancel", *shell.jobs())  # which would start it again in a minute
    shell.until("its end", reconciler_is_away)
    hold.touch()
    shell.type("reconcile", "tuned", "--detach")
    shell.until("more trials", lambda: bool(running()))
    slurm.run("scancel", running()[0], *shell.jobs())
    shell.until("its end", reconciler_is_away)
    hold.unlink()
    shell.type("reconcile", "tuned", "--detach")
    shell.until("the end", lambda: bool(shell.status("tuned")["settled"]))

    done = seen()
    _trained_once(done, 6)
    assert "cancelled" in {row.failure_class for rows in done.attempts.values() for row in rows}
    assert [run.stage for run in done.runs.values() if run.stage is not Stage.TRIAL] == [Stage.FULL]
    store.close()


def _trained_once(done: Observed, number: int) -> list[RunRow]:
    """Return the trials of a search that lost and repeated none, nor a step of any."""
    trials = [run for run in done.runs.values() if run.stage is Stage.TRIAL]
    assert [run.name for run in trials] == [f"trial-{number:04}" for number in range(number)]
    measured = Counter((event.run_id, event.data["step"]) for event in done.events() if event.kind == search.MEASURED)
    assert set(measured.values()) == {1}
    for run in done.runs.values():
        ledger = Path(done.campaign.dir, done.campaign.name, "runs", run.name, "ledger")
        trained = [int(line) for line in ledger.read_text().split()] if ledger.exists() else []
        whole = run.state in (RunState.COMPLETED, RunState.PRUNED)
        assert trained == list(range(1, (run.target_step or 0) + 1 if whole else len(trained) + 1)), run.name
    return trials
