"""Jobs that run several runs, in turn or side by side: what befalls one is no other's; nothing runs twice."""

from __future__ import annotations

import os
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
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
LANES = 4
NO_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB"
SHARED = {**SLURM, "runs_per_job": PER_JOB}
BESIDE = {**SHARED, "gpus_per_node": f"h100:{2 * LANES}", "gpus_per_run": 2, "cpus_per_task": LANES, "mem": "2G"}
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


def spans(trial: Trial) -> dict[str, list[tuple[float, float, str]]]:
    """When each attempt trained, and on which GPUs, by its job."""
    found = defaultdict(list)
    for ledger in trial.all_ledgers().values():
        for generation in ledger.generations():
            lines = ledger.of(generation)
            found[lines[0].job].append((lines[0].ts, lines[-1].ts, lines[0].gpus))
    return found


def most_at_a_time(spans: list[tuple[float, float, str]]) -> int:
    """How many attempts trained side by side; they had no GPU in common."""
    most = 0
    for began, _, _ in spans:
        gpus = [gpu for start, end, own in spans if start <= began < end for gpu in own.split(",") if own]
        assert len(gpus) == len(set(gpus)), spans
        most = max(most, sum(start <= began < end for start, end, _ in spans))
    return most


@pytest.fixture(scope="module", params=[1, pytest.param(LANES, marks=pytest.mark.nightly)])
def lanes(request: pytest.FixtureRequest) -> int:
    """How many runs a job runs at a time."""
    return int(request.param)


@pytest.fixture(scope="module")
def trial(slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory, lanes: int) -> Iterator[Trial]:
    """24 runs in three jobs, after they have settled."""
    quiet = [case(f"quiet-{n}", "3") for n in range(13)]
    troubled = [
        case("raises", "4", "raise=for once@3"),
        case("rank-dies", "4", "kill=9@3"),
        case("agent-dies", "4", "agent=9@3"),
        case("is-cancelled", "600"),
        case("mistaken", "3", "mistake=extra-key@1x9"),
    ]
    supervised = [case("supervised", "6", "hang=60@5"), *(case(f"behind-{n}", "3") for n in range(2))]
    requeued = [case("requeued", "6", "hang=60@5"), case("behind-requeued", "3")]
    cases = [
        *(*troubled, case("waits-for-nothing", "3"), *quiet[:2]),
        *(*supervised, *quiet[2:7]),
        *(*requeued, *quiet[7:]),
    ]
    assert len(cases) == 3 * PER_JOB
    made = begin(tmp_path_factory.mktemp("shared"), cases, slurm=SHARED if lanes == 1 else BESIDE)

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


def test_three_jobs_run_24_runs(done: Observed, trial: Trial, lanes: int) -> None:
    jobs = Counter(rows[0].job_id for rows in done.attempts.values())
    assert sorted(jobs.values()) == [PER_JOB] * 3
    most = max(map(most_at_a_time, spans(trial).values()))
    assert most == 1 if lanes == 1 else 2 <= most <= lanes


def test_no_trouble_is_anothers(done: Observed, lanes: int) -> None:
    """A quiet run completes in its first attempt that began, whatever happened to the runs of its job.

    Side by side, the end of a job is that of all runs that it runs.
    """
    with_job = {done.attempts[f"case-{name}"][0].job_id for name in ("supervised", "requeued")}
    quiet = [name for name in done.runs if name.startswith(("case-quiet", "case-behind"))]
    assert {done.runs[name].state for name in quiet} == {RunState.COMPLETED}
    for name in quiet:
        *before, last = done.attempts[name]
        began = [row for row in before if row.failure_class != "returned"]
        assert last.failure_class == "completed", name
        assert not began or (lanes > 1 and {row.job_id for row in began} <= with_job), name


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


def test_a_killed_supervisor_ends_what_runs(done: Observed, lanes: int) -> None:
    """The run that ran resumes; those that nobody had begun go into another job, and it counts against nothing."""
    assert kinds(done, "supervised")[-1] == "completed"
    assert len(kinds(done, "supervised")) == 2
    if lanes == 1:
        assert kinds(done, "behind-0") == ["returned", "completed"]


def test_a_requeued_job_goes_on(done: Observed) -> None:
    """`scontrol requeue` by hand: the run that ran is preempted, those behind it run in the second start."""
    assert kinds(done, "requeued") == ["preempted", "completed"]
    assert kinds(done, "behind-requeued")[-1] == "completed"


def test_runs_side_by_side(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Each has GPUs and an end of its own, and a free lane takes the next."""
    cases = [
        case("raises", "4", "raise=for once@3"),
        case("is-cancelled", "600"),
        case("smaller", "6", "--micro-batch={micro_batch}", f"raise={NO_MEMORY}@3", global_batch=8, micro_batch=4),
        *(case(f"quiet-{n}", "30") for n in range(3)),
    ]
    trial = begin(tmp_path, cases, slurm=BESIDE)

    def cancel(seen: Observed) -> bool:
        if can := runs(trial, "is-cancelled") and runs(trial, "quiet-0"):
            desired.cancel(trial.store, trial.campaign, ["case-is-cancelled"])
        return can

    done = trial.watch(Moments(trial, cancel))
    assert broken_promises(trial) == []
    assert (kinds(done, "raises"), kinds(done, "is-cancelled")) == (["crash", "completed"], ["cancelled"])
    assert {tuple(kinds(done, f"quiet-{n}")) for n in range(3)} == {("completed",)}
    before, after = done.attempts["case-smaller"]
    assert (before.failure_class, after.failure_class, after.micro_batch) == ("oom", "completed", 2)
    assert (after.job_id, after.job_token) == (before.job_id, before.token)  # in the same allocation
    jobs = spans(trial)
    first = jobs[str(done.attempts["case-quiet-0"][0].job_id)]
    assert len(first) >= len(cases)
    assert 2 <= most_at_a_time(first) <= LANES  # the first may end before the last begins
    assert {gpus for *_, gpus in first} == {"0,1", "2,3", "4,5", "6,7"}


def end_of_job(slurm: SlurmCluster, made: Trial, label: str, *command: str) -> Callable[[Observed], bool]:
    """Has Slurm do something to the job, or the node (`{}`), of a run that runs."""

    def does(seen: Observed) -> bool:
        if can := runs(made, label):
            line = made.ledger(f"case-{label}").lines[-1]
            slurm.run(*(word.format(job=line.job, node=line.node) for word in command))
        return can

    return does


@pytest.mark.nightly
@pytest.mark.parametrize("beside", [False, True])
def test_a_job_that_ends_in_the_middle(slurm: SlurmCluster, tmp_path: Path, beside: bool) -> None:
    """Only runs that ran are judged by a node's failure; a `scancel` of the job means all of its runs."""
    cases = [case("lost", "40", "--step-s=0.5", "hang=3@5"), case("behind-lost", "3")]
    cases += [case("cancelled", "40", "--step-s=0.5", "hang=3@5"), case("behind-cancelled", "3")]
    made = {**SLURM, "runs_per_job": 2, "exclusive": True}
    if beside:
        for each in cases:
            each["command"], each["steps"] = cases[0]["command"], 40
        made = {**BESIDE, "gpus_per_node": "h100:2", "gpus_per_run": 1, "runs_per_job": 2, "exclusive": True}
    trial = begin(tmp_path, cases, slurm=made)
    down = ("scontrol", "update", "NodeName={node}", "State=DOWN", "Reason=test")
    trial.watch(
        Moments(
            trial, end_of_job(slurm, trial, "lost", *down), end_of_job(slurm, trial, "cancelled", "scancel", "{job}")
        )
    )
    slurm.undrain()
    done = trial.observe()
    assert broken_promises(trial) == []
    behind = "node" if beside else "returned"
    assert (kinds(done, "lost"), kinds(done, "behind-lost")) == (["node", "completed"], [behind, "completed"])
    assert (kinds(done, "cancelled"), kinds(done, "behind-cancelled")) == (["cancelled"], ["cancelled"])
    assert bool(trial.ledger("case-behind-cancelled").lines) == beside


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
@pytest.mark.parametrize("lanes", [1, LANES])
def test_a_step_out_of_memory_and_one_that_hangs(slurm: SlurmCluster, tmp_path: Path, lanes: int) -> None:
    """Slurm's account of a step is that of its own run alone; the run behind one that hangs has its turn."""
    cases = [
        case("memory", "4", "alloc=400@3x1"),
        case("after-memory", "4", "kill=9@2"),
        case("hangs", "40", "--watched", "hang=600@30"),
        case("behind", "4"),
    ]
    made = {**SLURM, "gpus_per_node": f"h100:{lanes}", "mem": f"{300 * lanes}M", "runs_per_job": 4}
    made |= {"gpus_per_run": 1, "cpus_per_task": lanes}
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
