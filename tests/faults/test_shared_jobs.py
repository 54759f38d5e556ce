"""Jobs that run several runs in turn: what befalls one run, or its job, is never another run's; nothing runs twice."""

from __future__ import annotations

import os
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from dscampaign.db.records import AttemptRow
from dscampaign.db.states import RunState
from dscampaign.orchestrator.campaign import desired
from dscampaign.tests.support.campaigns import Observed
from dscampaign.tests.support.slurm_cluster import SlurmCluster

from .promises import broken_promises
from .trial import SLURM, Trial, begin, case

PER_JOB = 8
SHARED = {**SLURM, "runs_per_job": PER_JOB}
SUPERVISOR = "dscampaign.jobs.agent.shared_job"


class Moments:
    """Does each thing once, at the first pass after which it can be done."""

    def __init__(self, trial: Trial, *things: Callable[[Observed], bool]) -> None:
        self._trial, self._left = trial, list(things)

    def __call__(self) -> None:
        seen = self._trial.observe()
        self._left = [thing for thing in self._left if not thing(seen)]


def supervisors(cluster: SlurmCluster) -> dict[str, int]:
    """The processes that run several attempts, by job."""
    found = {}
    for pid in cluster.job_pids():
        with suppress(OSError):
            if SUPERVISOR in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                env = dict(e.split("=", 1) for e in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in e)
                found[f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"] = pid
    return found


def first_of(seen: Observed, label: str) -> AttemptRow | None:
    """The first attempt of a run."""
    return next(iter(seen.attempts[f"case-{label}"]), None)


def runs(trial: Trial, label: str) -> bool:
    """Whether its training has made a step and has not ended."""
    lines = trial.ledger(f"case-{label}").lines
    return any(line.what == "step" for line in lines) and lines[-1].what != "end"


@pytest.fixture(scope="module")
def trial(slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """24 runs in three jobs, after they have settled."""
    quiet = [case(f"quiet-{n}", "3") for n in range(13)]
    troubled = [
        case("raises", "4", "raise=for once@3"),
        case("rank-dies", "4", "kill=9@3"),
        case("agent-dies", "4", "agent=9@3"),
        case("is-cancelled", "600"),
        case("mistaken", "3", "mistake=extra-key@1x9"),
    ]
    supervised = [case("supervised", "6", "hang=2@5"), *(case(f"behind-{n}", "3") for n in range(2))]
    requeued = [case("requeued", "6", "hang=2@5"), case("behind-requeued", "3")]
    cases = [
        *(*troubled, case("waits-for-nothing", "3"), *quiet[:2]),
        *(*supervised, *quiet[2:7]),
        *(*requeued, *quiet[7:]),
    ]
    assert len(cases) == 3 * PER_JOB
    made = begin(tmp_path_factory.mktemp("shared"), cases, slurm=SHARED)

    def cancel_running(seen: Observed) -> bool:
        if can := runs(made, "is-cancelled"):
            desired.cancel(made.store, made.campaign, ["case-is-cancelled"])
        return can

    def cancel_waiting(seen: Observed) -> bool:
        desired.cancel(made.store, made.campaign, ["case-waits-for-nothing"])
        return True

    def kill_supervisor(seen: Observed) -> bool:
        row = first_of(seen, "supervised")
        pid = supervisors(slurm).get(str(row and row.job_id))
        if can := bool(pid) and runs(made, "supervised"):
            os.kill(pid or 0, signal.SIGKILL)
        return can

    def requeue(seen: Observed) -> bool:
        row = first_of(seen, "requeued")
        if can := row is not None and runs(made, "requeued"):
            slurm.run("scontrol", "update", f"JobId={row and row.job_id}", "Requeue=1")
            slurm.run("scontrol", "requeue", str(row and row.job_id))
        return can

    def start_again(seen: Observed) -> bool:
        """At once: Slurm would let it wait for two minutes."""
        row = first_of(seen, "requeued")
        if waits := slurm.run("squeue", "-h", "-o", "%r", "-j", str(row and row.job_id)) == "BeginTime":
            slurm.run("scontrol", "update", f"JobId={row and row.job_id}", "StartTime=now")
        return waits

    made.watch(Moments(made, cancel_running, cancel_waiting, kill_supervisor, requeue, start_again))
    yield made
    made.store.close()


@pytest.fixture(scope="module")
def done(trial: Trial) -> Observed:
    """What the store holds in the end."""
    return trial.observe()


def kinds(done: Observed, label: str) -> list[str | None]:
    return [row.failure_class for row in done.attempts[f"case-{label}"]]


def test_every_promise_is_kept(trial: Trial) -> None:
    """Nothing ran twice, no step is lost or doubled, budgets hold, each end was decided on within two passes."""
    assert broken_promises(trial) == []


def test_three_jobs_run_24_runs_one_at_a_time(done: Observed, trial: Trial) -> None:
    jobs = Counter(rows[0].job_id for rows in done.attempts.values())
    assert sorted(jobs.values()) == [PER_JOB] * 3
    spans = defaultdict(list)
    for ledger in trial.all_ledgers().values():
        for generation in ledger.generations():
            lines = ledger.of(generation)
            spans[lines[0].job].append((lines[0].ts, lines[-1].ts))
    for of_job in spans.values():
        ordered = sorted(of_job)
        assert all(before[1] <= after[0] for before, after in pairwise(ordered))


def test_no_trouble_is_anothers(done: Observed) -> None:
    """A quiet run completes in its first attempt that began, whatever happened to the runs of its job."""
    quiet = [name for name in done.runs if name.startswith(("case-quiet", "case-behind"))]
    assert {done.runs[name].state for name in quiet} == {RunState.COMPLETED}
    for name in quiet:
        *before, last = [row.failure_class for row in done.attempts[name]]
        assert (set(before) <= {"returned"}, last) == (True, "completed"), name


@pytest.mark.parametrize("label", ["raises", "rank-dies", "agent-dies"])
def test_a_failure_ends_its_own_step(done: Observed, label: str) -> None:
    first, last = done.attempts[f"case-{label}"]
    assert (first.failure_class, last.failure_class) == ("crash", "completed")
    assert (last.start_step or 0) >= 2


def test_a_mistake_is_tried_once(done: Observed) -> None:
    assert kinds(done, "mistaken") == ["deterministic"]


def test_a_running_run_is_cancelled_alone(done: Observed) -> None:
    assert kinds(done, "is-cancelled") == ["cancelled"]
    assert done.runs["case-is-cancelled"].state is RunState.CANCELLED


def test_a_waiting_run_is_cancelled_alone(done: Observed, trial: Trial) -> None:
    assert kinds(done, "waits-for-nothing") == ["cancelled"]
    assert not trial.ledger("case-waits-for-nothing").lines


def test_a_killed_supervisor_ends_one_run(done: Observed) -> None:
    """The run that ran resumes; those that nobody had begun go into another job, and it counts against nothing."""
    assert kinds(done, "supervised")[-1] == "completed"
    assert len(kinds(done, "supervised")) == 2
    assert kinds(done, "behind-0") == ["returned", "completed"]


def test_a_requeued_job_goes_on(done: Observed) -> None:
    """`scontrol requeue` by hand: the run that ran is preempted, those behind it run in the second start."""
    assert kinds(done, "requeued") == ["preempted", "completed"]
    assert kinds(done, "behind-requeued")[-1] == "completed"


def end_of_job(slurm: SlurmCluster, made: Trial, label: str, *command: str) -> Callable[[Observed], bool]:
    """Has Slurm do something to the job, or the node (`{}`), of a run that runs."""

    def does(seen: Observed) -> bool:
        if can := runs(made, label):
            line = made.ledger(f"case-{label}").lines[-1]
            slurm.run(*(word.format(job=line.job, node=line.node) for word in command))
        return can

    return does


@pytest.mark.nightly
def test_a_job_that_ends_in_the_middle(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Only the run that ran is judged by a node's failure; a `scancel` of the job means all of its runs."""
    cases = [case("lost", "40", "--step-s=0.5", "hang=3@5"), case("behind-lost", "3")]
    cases += [case("cancelled", "40", "--step-s=0.5", "hang=3@5"), case("behind-cancelled", "3")]
    trial = begin(tmp_path, cases, slurm={**SLURM, "runs_per_job": 2, "exclusive": True})
    down = ("scontrol", "update", "NodeName={node}", "State=DOWN", "Reason=test")
    trial.watch(
        Moments(
            trial,
            end_of_job(slurm, trial, "lost", *down),
            end_of_job(slurm, trial, "cancelled", "scancel", "{job}"),
        )
    )
    slurm.undrain()
    done = trial.observe()
    assert broken_promises(trial) == []
    assert (kinds(done, "lost"), kinds(done, "behind-lost")) == (["node", "completed"], ["returned", "completed"])
    assert (kinds(done, "cancelled"), kinds(done, "behind-cancelled")) == (["cancelled"], ["cancelled"])
    assert not trial.ledger("case-behind-cancelled").lines


@pytest.mark.nightly
def test_a_job_without_time_for_all(slurm: SlurmCluster, tmp_path: Path) -> None:
    """What it has no time for goes back before it begins; the run that the limit ends saves before."""
    cases = [case(f"short-{n}", "40", "--step-s=0.5") for n in range(3)]
    cases += [case("long", "500", "--step-s=0.5"), case("behind", "3")]
    made = {**SLURM, "runs_per_job": 5, "time": 2, "signal_delay_s": 5}
    trial = begin(tmp_path, cases, slurm=made, env={"LEDGER_DIR": str(tmp_path / "ledger")})
    trial.watch(until=lambda: trial.ledger("case-long").last_step() > 60)
    desired.cancel(trial.store, trial.campaign, ["case-long"])
    done = trial.watch()
    assert broken_promises(trial) == []
    for label in ("short-0", "short-1", "short-2", "behind"):
        *before, last = kinds(done, label)
        assert set(before) <= {"returned"}
        assert last == "completed"
    assert "returned" in kinds(done, "short-2")
    assert set(kinds(done, "long")) <= {"returned", "stopped", "time_limit", "cancelled"}


@pytest.mark.nightly
def test_a_step_out_of_memory_and_one_that_hangs(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Slurm's account of a step is that of its own run alone; the run behind one that hangs has its turn."""
    cases = [
        case("memory", "4", "alloc=400@3x1"),
        case("after-memory", "4", "kill=9@2"),
        case("hangs", "40", "--watched", "hang=600@30"),
        case("behind", "4"),
    ]
    made = {**SLURM, "gpus_per_node": "h100:1", "mem": "300M", "runs_per_job": 4}
    retry = {"backoff_s": 0, "hang_min_s": 5, "hang_factor": 10}
    trial = begin(tmp_path, cases, slurm=made, retry=retry)
    done = trial.watch()
    assert broken_promises(trial) == []
    assert kinds(done, "memory") == ["host_oom", "completed"]
    assert kinds(done, "after-memory")[-2:] == ["crash", "completed"]
    assert kinds(done, "hangs")[-2:] == ["hang", "completed"]
    assert kinds(done, "behind")[-1] == "completed"
    assert {kind for name in ("after-memory", "behind") for kind in kinds(done, name)} <= {
        *("returned", "crash", "completed")
    }
