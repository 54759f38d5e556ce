"""What goes wrong inside an attempt: ranks, launchers, agents, memory, checkpoints, mistakes, all in one campaign."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dscampaign.db.records import AttemptRow
from dscampaign.db.states import RunState
from dscampaign.tests.support.campaigns import Observed
from dscampaign.tests.support.slurm_cluster import SlurmCluster

from .promises import broken_promises
from .trial import REAL, SLURM, Trial, begin, case

pytestmark = pytest.mark.training

PREEMPTIONS = 5
SIGNALS = {9: REAL, 6: {}, 11: {}}
"""One of the signals through the real launcher."""
CERTAIN = "extra-key", "no-module", "syntax"
LIKELY = "no-file", "wrong-type"
TWO_RANKS = {"ranks_per_node": 2}
GPU = {"slurm.gpus_per_node": "h100:1", "slurm.mem": "300M"}
SCAVENGED = {"slurm.partition": "scavenge", "slurm.exclude": "gpu001,gpu002,gpu003", "slurm.time": 5}


class Preemptor:
    """A job of higher priority takes the node of the preemptable run, each time that its attempt has won a step.

    The attempt waits for it after that step, so that there are as many preemptions however slow the machine is.
    """

    def __init__(self, cluster: SlurmCluster, trial: Trial) -> None:
        self._cluster, self._trial, self.times = cluster, trial, 0

    def __call__(self) -> None:
        if len(self._trial.ledger("case-preempted").faults()) > self.times:
            self.times += 1
            self._cluster.sbatch("true", "--partition=h100", "--nodelist=gpu004", "--exclusive")


@pytest.fixture(scope="module")
def trial(slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """The campaign after it has settled."""
    deaths = [
        case(f"rank-{number}", "30", "--step-s=0.2", "--rank=1", f"kill={number}@4", **python, **TWO_RANKS)
        for number, python in SIGNALS.items()
    ]
    waits = [f"hang=600@{attempt + 1}" for attempt in range(1, PREEMPTIONS + 1)]
    mistakes = [case(f"mistake-{name}", "3", f"mistake={name}@1x9") for name in (*CERTAIN, *LIKELY)]
    cases = [
        case("undisturbed", "6", "--step-s=0.5"),
        *deaths,
        case("launcher", "6", "launcher=9@4", **REAL),
        case("agent", "6", "agent=9@4"),
        case("hopeless", "6", "--every=10", "raise=the same again@4x99"),
        case("memory", "4", "alloc=400@3x9", **GPU),
        case("preempted", str(PREEMPTIONS + 3), *waits, **SCAVENGED),
        case("truncated", "8", "--every=2", "truncate=9@4"),
        case("mid-save", "8", "--every=2", "save=9@4"),
        *mistakes,
        case("mistake-no-interpreter", "3", python="/no/such/python"),
    ]
    begun = begin(tmp_path_factory.mktemp("attempt"), cases, slurm={**SLURM, "exclude": "gpu004"})
    begun.watch(each_pass=Preemptor(slurm, begun))
    yield begun
    begun.store.close()


@pytest.fixture(scope="module")
def done(trial: Trial) -> Observed:
    """What the store holds in the end."""
    return trial.observe()


def attempts(done: Observed, label: str) -> list[AttemptRow]:
    return done.attempts[f"case-{label}"]


def state(done: Observed, label: str) -> RunState:
    return done.runs[f"case-{label}"].state


def test_every_promise_is_kept(trial: Trial) -> None:
    """Nothing ran twice, no step is lost or doubled, budgets hold, each end was decided on within two passes."""
    assert broken_promises(trial) == []


def test_nothing_befalls_a_run_that_nothing_befell(done: Observed, trial: Trial) -> None:
    """Whatever happens to its neighbours, an undisturbed run is one attempt."""
    assert state(done, "undisturbed") is RunState.COMPLETED
    assert len(attempts(done, "undisturbed")) == 1
    assert trial.ledger("case-undisturbed").steps(1) == list(range(1, 7))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_rank_killed_by_a_signal(done: Observed, trial: Trial, number: int) -> None:
    """Rank 1 dies: the run resumes behind its last checkpoint, once, and completes."""
    first, last = attempts(done, f"rank-{number}")
    assert (first.state, last.state) == ("failed", "completed")
    ledger = trial.ledger(f"case-rank-{number}")
    saved = [line.step for line in ledger.lines if line.what == "saved" and line.generation == 1]
    # Rank 0 saves each step until the launcher ends it: maybe before its first step, or between saving and saying so.
    newest = max(saved, default=0)
    assert newest <= (last.start_step or 0) <= newest + 1 < 30
    assert ledger.faults() == [f"kill={number}@4"]


def test_a_launcher_killed(done: Observed) -> None:
    """`deepspeed` dies by SIGKILL, which Slurm may call COMPLETED 0:0: it is no success, and its ranks do not go on."""
    first, last = attempts(done, "launcher")
    assert (first.state, last.state) == ("failed", "completed")
    assert last.start_step == 3


def test_an_agent_killed(done: Observed) -> None:
    """The agent dies by SIGKILL: nobody watches over its ranks, so they end, and only then is the run resumed."""
    first, last = attempts(done, "agent")
    assert (first.state, last.state) == ("failed", "completed")
    assert 3 <= (last.start_step or 0) <= 6


def test_a_run_that_always_fails_at_the_same_step_is_given_up(done: Observed) -> None:
    """No machine is to blame: what comes back at the same place is not tried a third time, whatever budget is left."""
    assert state(done, "hopeless") is RunState.FAILED
    assert len(attempts(done, "hopeless")) == 2
    reason = done.runs["case-hopeless"].reason
    assert "the same again" in reason
    assert "the same error at the same place ended attempt 1" in reason


def test_more_memory_than_the_job_asked_for(done: Observed) -> None:
    """Slurm kills a run on GPUs for its `--mem`: it gets more host memory, and completes with the same micro-batch."""
    first, *_, last = attempts(done, "memory")
    assert first.failure_class == "host_oom"
    assert last.state == "completed"
    assert first.micro_batch == last.micro_batch


def test_five_preemptions(done: Observed) -> None:
    """They count against no budget, and each attempt repeats at most one checkpoint interval."""
    *preempted, last = attempts(done, "preempted")
    assert [attempt.failure_class for attempt in preempted] == ["preempted"] * PREEMPTIONS
    assert last.state == "completed"
    lost = [(a.last_step or 0) - (b.start_step or 0) for a, b in zip(preempted, [*preempted[1:], last], strict=True)]
    assert all(0 <= steps <= 1 for steps in lost)


def test_a_truncated_checkpoint(done: Observed, trial: Trial) -> None:
    """The newest checkpoint lost its end: the run resumes from the verified one before it, and completes."""
    _, last = attempts(done, "truncated")
    assert (last.state, last.start_step) == ("completed", 2)
    assert trial.ledger("case-truncated").steps(2) == [3, 4, 5, 6, 7, 8]


def test_a_kill_in_the_midst_of_a_save(done: Observed, trial: Trial) -> None:
    """What was half written does not exist: the run resumes from the checkpoint before it, and completes."""
    _, last = attempts(done, "mid-save")
    assert (last.state, last.start_step) == ("completed", 2)
    assert trial.ledger("case-mid-save").steps(2) == [3, 4, 5, 6, 7, 8]


def test_a_mistake_of_each_kind(done: Observed) -> None:
    """What is certain is attempted exactly once; what another process or the node might cause, exactly twice.

    What the classes make of an error is proven in tests/unit/failures; DeepSpeed's own refusal of a key, with the real
    launcher, in tests/integration/slurm/test_main_job.py.
    """
    wrong = [name for name in done.runs if name.startswith("case-mistake-")]
    likely = {f"case-mistake-{name}" for name in LIKELY}
    assert len(wrong) == len(CERTAIN) + len(LIKELY) + 1
    for name in wrong:
        kinds = [attempt.failure_class for attempt in done.attempts[name]]
        assert kinds == (["crash", "crash"] if name in likely else ["deterministic"]), name
    assert {done.runs[name].state for name in wrong} == {RunState.FAILED}
    assert all(done.runs[name].reason for name in wrong)
