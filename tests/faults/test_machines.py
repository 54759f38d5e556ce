"""What befalls the machines: Slurm's servers stop, die and forget, the disk is full."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path

import pytest

from dscampaign.db.states import RunState
from dscampaign.jobs.agent.agent import HEARTBEAT_S
from dscampaign.orchestrator.executors import slurm_commands
from dscampaign.orchestrator.executors.base import JobArray
from dscampaign.orchestrator.executors.slurm import SlurmExecutor
from dscampaign.tests.support.slurm_cluster import SlurmCluster
from dscampaign.tests.support.waiting import wait_until

from .disk import SmallDisk
from .promises import broken_promises
from .trial import Trial, begin, case

SOON_S = 3.0


def completed(trial: Trial) -> bool:
    return set(trial.observe().states().values()) == {RunState.COMPLETED}


@pytest.mark.parametrize(
    "stopped_after_s", [0.0, *(pytest.param(later_s, marks=pytest.mark.nightly) for later_s in (0.02, 0.1))]
)
def test_slurmctld_stopped_around_sbatch(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_after_s: float
) -> None:
    """The controller stops before, in or after a submission: one without an answer is looked for, not repeated."""
    monkeypatch.setattr(SlurmExecutor, "intent_grace_s", SOON_S)
    monkeypatch.setattr(slurm_commands, "COMMAND_TIMEOUT_S", SOON_S)
    trial = begin(tmp_path, [case("one", "3"), case("two", "3")])
    stop = threading.Timer(stopped_after_s, slurm.pause, ["slurmctld"])
    submit = SlurmExecutor.submit

    def submit_while_it_stops(self: SlurmExecutor, batch: JobArray) -> list[str]:
        if not stop.ident:
            stop.start()
            if not stopped_after_s:
                stop.join()
        return submit(self, batch)

    monkeypatch.setattr(SlurmExecutor, "submit", submit_while_it_stops)
    trial.watch(until=lambda: bool(stop.ident))
    stop.join()
    slurm.resume("slurmctld")
    trial.watch()
    assert completed(trial)
    assert broken_promises(trial) == []
    executed = {line.job for ledger in trial.all_ledgers().values() for line in ledger.lines}
    assert len(executed) == 2


def test_kill_9_of_slurmd(slurm: SlurmCluster, tmp_path: Path) -> None:
    """A node fails while its processes go on: they end before another job resumes the run, and it completes."""
    trial = begin(tmp_path, [case("fails", "120", "slow=0.5@3"), case("elsewhere", "6", **{"slurm.exclude": "gpu001"})])
    trial.watch(until=lambda: trial.ledger("case-fails").last_step() > 3)
    node = trial.ledger("case-fails").lines[-1].node
    slurm.kill(node)
    # what Slurm does by itself after SlurmdTimeout and a round of pings: the soak waits for it
    slurm.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=no answer")
    trial.watch(until=lambda: len(trial.observe().attempts["case-fails"]) > 1)
    slurm.start(node)
    done = trial.watch()
    first, *_ = done.attempts["case-fails"]
    assert first.failure_class == "node"
    assert completed(trial)
    assert len(done.attempts["case-elsewhere"]) == 1
    assert broken_promises(trial) == []


def test_a_node_fails_while_its_agent_is_stopped(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Nobody else could end the ranks of the old attempt: they end themselves soon after the new one is known."""
    trial = begin(tmp_path, [case("fails", "120", "--step-s=0.3", "--every=1000")])
    trial.watch(until=lambda: trial.ledger("case-fails").last_step() > 3)
    newest = trial.ledger("case-fails").lines[-1]
    rank = Path(f"/proc/{newest.pid}")
    agent = int(re.findall(r"CAMPAIGN_AGENT_PID=(\d+)", (rank / "environ").read_text())[0])
    os.kill(agent, signal.SIGSTOP)
    try:
        slurm.kill(newest.node)
        slurm.run("scontrol", "update", f"NodeName={newest.node}", "State=DOWN", "Reason=no answer")
        trial.watch(until=lambda: len(trial.observe().attempts["case-fails"]) > 1)
        wait_until(lambda: not rank.exists(), "the end of the old rank")
        [log] = (tmp_path / "campaign/faults/runs/case-fails/g0001/logs").rglob("*rank0.log")
        assert "attempt 2 has begun" in log.read_text()
    finally:
        os.kill(agent, signal.SIGKILL)
    slurm.start(newest.node)
    done = trial.watch()
    assert [a.failure_class for a in done.attempts["case-fails"]] == ["node", "completed"]
    assert [broken for broken in broken_promises(trial) if "after attempt 2 had begun" not in broken] == []


def test_slurmdbd_away_and_lagging(slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No accounting: the queue still shows what ended. An accounting that hangs, then catches up, changes nothing."""
    monkeypatch.setattr(slurm_commands, "COMMAND_TIMEOUT_S", SOON_S)
    cases = [case("away", "5", "exit=3@3"), case("lags", "30", "--step-s=0.3", "exit=3@25")]
    trial = begin(tmp_path, cases)
    slurm.kill("slurmdbd")
    trial.watch(until=lambda: trial.observe().states()["case-away"] is RunState.COMPLETED)
    slurm.start("slurmdbd")
    slurm.pause("slurmdbd")
    trial.watch(until=lambda: len(trial.observe().attempts["case-lags"]) > 1)
    slurm.resume("slurmdbd")
    done = trial.watch()
    assert completed(trial)
    assert {name: [a.failure_class for a in rows] for name, rows in done.attempts.items()} == {
        "case-away": ["crash", "completed"],
        "case-lags": ["crash", "completed"],
    }
    assert broken_promises(trial) == []


def test_a_lost_state_directory_of_slurm(
    own_slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm forgets its jobs and gives their ids to others: attempts are known by token, none runs beside its heir."""
    monkeypatch.setattr(SlurmExecutor, "lost_grace_s", 2 * HEARTBEAT_S)
    trial = begin(tmp_path, [case(name, "60", "slow=0.3@2") for name in ("one", "two")])
    trial.watch(until=lambda: all(x.last_step() > 3 for x in trial.all_ledgers().values()))
    own_slurm.lose_state()
    wait_until(own_slurm.idle, "idle nodes")
    stranger = own_slurm.sbatch("true", "--array=0-1", "--hold")
    done = trial.watch()
    assert {rows[0].job_id for rows in done.attempts.values()} == {f"{stranger}_0", f"{stranger}_1"}
    assert completed(trial), [run.reason for run in done.runs.values()]
    assert broken_promises(trial) == []
    assert own_slurm.run("squeue", "-h", "-j", stranger, "-o", "%T") == "PENDING"


def test_a_full_disk(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Nothing is spent on a folder that takes no files: the run waits until there is room, and then completes."""
    with SmallDisk(tmp_path / "disk", mb=4) as disk:
        trial = begin(tmp_path, [case("full", "30", "--step-s=0.5")], dir=disk.path / "campaign", code="live")
        trial.watch(until=lambda: trial.ledger("case-full").last_step() > 3)
        disk.fill()
        seen = len(trial.passes)

        def thirty_passes_later() -> bool:
            disk.fill()  # what the end of an attempt has freed, somebody else takes
            return len(trial.passes) + len(trial.errors) > seen + 30

        trial.watch(until=thirty_passes_later)
        while_full = len(trial.ledger("case-full").generations())
        assert trial.observe().states()["case-full"] not in (RunState.FAILED, RunState.COMPLETED)
        disk.free()
        done = trial.watch()
        assert completed(trial), done.runs["case-full"].reason
        assert while_full <= 2, "it was tried again and again on a full disk"
        assert {a.failure_class for a in done.attempts["case-full"]} == {"storage", "completed"}
        assert broken_promises(trial) == []
