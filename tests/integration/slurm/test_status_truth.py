"""What status says, at every transition of a run's life, beside squeue, sacct and the process table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dscampaign.db.records import ENDING
from dscampaign.orchestrator.campaign import desired
from dscampaign.orchestrator.campaign.documents import status_document
from dscampaign.orchestrator.campaign.status import read_status
from dscampaign.orchestrator.pages.status import status_page
from dscampaign.orchestrator.pages.text import Page
from dscampaign.orchestrator.reconcile.loop import Pass, Reconciler
from dscampaign.tests.faults.trial import SLURM, stand_in
from dscampaign.tests.support.campaigns import open_store, submit
from dscampaign.tests.support.slurm_cluster import SlurmCluster
from dscampaign.tests.support.waiting import wait_until

SCRIPT = """
import os, time
from pathlib import Path
from dscampaign.jobs.report import report
kind, first = os.environ["KIND"], os.environ["CAMPAIGN_GENERATION"] == "1"
if kind == "fails" and first:
    raise RuntimeError("once")
report(1, loss=1.0)
while kind.startswith("waits") and not Path(os.environ["CAMPAIGN_WORKDIR"], "end").exists():
    time.sleep(0.2)
report(2, loss=1.0)
"""
KINDS = ("done", "fails", "waits", "waits-node", "waits-scancel", "waits-cancel", "queue-scancel", "queue-cancel")
OF_STATE = {"running": {"RUNNING", "COMPLETING", "CONFIGURING"}, "queued": {"PENDING", "CONFIGURING"}}
OVER = {"", "COMPLETING"}
"""What squeue shows of a run's job in each state, and in all others."""


class Life:
    """A campaign, and all places that know something of it."""

    def __init__(self, slurm: SlurmCluster, folder: Path, name: str, kinds: tuple[str, ...]) -> None:
        self.slurm = slurm
        (folder / "train.py").write_text(SCRIPT)
        spec: dict[str, Any] = {"name": name, "python": str(stand_in(folder)), "command": "train.py"}
        spec |= {"train": {"steps": 2}, "slurm": SLURM, "ranks_per_node": 1, "retry": {"backoff_s": 0}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({**spec, "matrix": {"env.KIND": list(kinds)}}))
        self.store = open_store(f"sqlite:///{folder}/campaign.db")
        self.campaign = submit(folder / f"{name}.yaml", folder, self.store)

    def reconcile(self) -> Pass:
        """One pass, as from a crontab: it knows what the store does, and nothing of the passes before."""
        reconciler = Reconciler(self.store, self.campaign)
        done = reconciler.run_pass()
        reconciler.close()
        return done

    def runs(self) -> dict[str, dict[str, Any]]:
        """The lines of `status --json` by kind."""
        runs = status_document(self.store, self.campaign)["runs"]
        return {run["name"].removeprefix("KIND-"): run for run in runs}

    def page(self) -> str:
        """What `status` prints."""
        return status_page(read_status(self.store, self.campaign), Page(False, None))

    def passes(self) -> dict[str, dict[str, Any]]:
        """One pass, and what status then says: what Slurm showed before or shows after it."""
        before = self.live()
        self.reconcile()
        runs, after = self.runs(), self.live()
        for kind, run in runs.items():
            if run["cancelling"]:
                continue  # until the next pass
            job = str(run["attempts"][-1]["job_id"] if run["attempts"] else "")
            shown = {before.get(job, ""), after.get(job, "")}
            if job in after.keys() - before.keys():
                shown.add("PENDING")  # as it was first, however soon it ran
            if f"Slurm does not know job {job};" in run["reason"]:
                shown = OF_STATE[run["state"]] if not shown - OVER else set()  # what is not known is said, with its end
            if run["state"] == "running" and run["phase"] == ENDING:
                continue  # squeue has it no more, and sacct may still say why: shown as ending
            assert shown & OF_STATE.get(run["state"], OVER), (kind, run["state"], run["reason"], shown)
        return runs

    def live(self) -> dict[str, str]:
        """State of each job that has not ended, by its id."""
        lines = self.slurm.run("squeue", "-h", "--array", "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)

    def until(self, what: str, reached: Callable[[dict[str, dict[str, Any]]], bool]) -> dict[str, dict[str, Any]]:
        """Passes until status says so."""
        seen: dict[str, dict[str, Any]] = {}

        def look() -> bool:
            seen.update(self.passes())
            return reached(seen)

        wait_until(look, what)
        return seen

    def job(self, kind: str) -> str:
        """The id of its newest job."""
        return str(self.runs()[kind]["attempts"][-1]["job_id"])

    def cancel(self, kind: str) -> None:
        """`campaign cancel`, without its pass."""
        desired.cancel(self.store, self.campaign, [self.runs()[kind]["name"]])


@pytest.fixture
def closed(slurm: SlurmCluster) -> Any:
    """The partition takes jobs and starts none, until the test opens it."""
    slurm.run("scontrol", "update", "PartitionName=h100", "State=DOWN")
    yield slurm
    slurm.run("scontrol", "update", "PartitionName=h100", "State=UP")
    slurm.reset()


def test_status_tells_the_truth_at_every_transition(closed: SlurmCluster, tmp_path: Path) -> None:
    life = Life(closed, tmp_path, "life", KINDS)
    assert {run["state"] for run in life.runs().values()} == {"pending"}
    assert "retries: off, not reconciled yet" in life.page()

    life.passes()
    life.until("the reason", lambda runs: all("PartitionDown" in run["reason"] for run in runs.values()))

    # cancelled in the queue, by us and by hand
    life.cancel("queue-cancel")
    assert life.runs()["queue-cancel"]["cancelling"]
    assert "1 cancelling" in life.page()
    by_hand = life.job("queue-scancel")
    closed.run("scancel", by_hand)
    runs = life.until("both cancelled", lambda runs: all(runs[k]["state"] == "cancelled" for k in KINDS[-2:]))
    assert not {by_hand, life.job("queue-cancel")} & life.live().keys()
    assert not any(runs[kind]["cancelling"] for kind in KINDS)

    # a controller that is down
    closed.daemons["slurmctld"].stop(timeout_s=30)
    life.reconcile()
    assert "Slurm has not answered for" in life.page()
    assert "squeue" in status_document(life.store, life.campaign)["reconciler"]["trouble"]
    assert life.runs()["done"]["state"] == "queued"
    closed.start("slurmctld")
    life.until("an answer", lambda _: "Slurm has not answered" not in life.page())

    # it begins, ends, fails and is tried again
    closed.run("scontrol", "update", "PartitionName=h100", "State=UP")
    life.until("waiting runs", lambda runs: all(runs[k]["state"] == "running" for k in KINDS if "waits" in k))
    assert len(closed.job_pids()) >= 4
    runs = life.until("done", lambda runs: all(runs[k]["state"] == "completed" for k in ("done", "fails")))
    assert [a["failure_class"] for a in runs["fails"]["attempts"]] == ["crash", "completed"]

    # cancelled while they run, and a node that is lost
    closed.run("scancel", life.job("waits-scancel"))
    life.cancel("waits-cancel")
    assert life.runs()["waits-cancel"]["cancelling"]
    node = closed.run("squeue", "-h", "-j", life.job("waits-node"), "-o", "%N")
    lost = life.job("waits-node")
    closed.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    runs = life.until(
        "both cancelled, and the other elsewhere",
        lambda runs: (
            all(runs[k]["state"] == "cancelled" for k in ("waits-scancel", "waits-cancel"))
            and runs["waits-node"]["state"] == "running"
            and life.job("waits-node") != lost
        ),
    )
    assert runs["waits-node"]["attempts"][0]["failure_class"] == "node"

    (tmp_path / "end").touch()
    life.until("the end", lambda runs: all(runs[k]["state"] == "completed" for k in ("waits", "waits-node")))
    ends = {kind: run["state"] for kind, run in life.runs().items()}
    assert {kind for kind, state in ends.items() if state == "cancelled"} == {
        *("waits-scancel", "waits-cancel"),
        *("queue-scancel", "queue-cancel"),
    }
    assert all(len(run["attempts"]) == 1 for kind, run in life.runs().items() if "cancel" in kind)
