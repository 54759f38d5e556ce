"""The whole loop against the worst that a cluster can do, in any order that hypothesis thinks of.

MACHINE_EXAMPLES=5000 pytest tests/simulation    tries as many histories; a failure is printed with a blob to repeat it.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dscampaign.db.errors import StaleLease, StoreUnreachable
from dscampaign.db.store import Store
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.reconcile.lease import LeaseHeld
from dscampaign.tests.simulation.accidents import Killed
from dscampaign.tests.simulation.clock import Clock
from dscampaign.tests.simulation.fates import FATES, PENDING_FATES
from dscampaign.tests.simulation.nasty_slurm import LOOKS, SUBMISSIONS, Job, every
from dscampaign.tests.simulation.world import DEPTHS, World, in_memory, make_spec

EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", "30"))
"""Histories that are tried; `make test-all` sets 5000."""

PHASES = [Phase.explicit, Phase.reuse, Phase.generate] if os.environ.get("MACHINE_NO_SHRINK") else list(Phase)

STEPS = 40
PASS_S = 700.0
MOST_PASSES = 10
"""In which a world without further accidents settles, if so much time passes between two, whatever its clocks say."""

SEARCH_ROUNDS = 6
"""So often a search waits for runs: the trials two at a time, three rungs, and the confirmation."""

RECALL_PASSES = 3
"""In which an attempt that the store has forgotten is recorded again and judged; a run has them one by one."""

DAY_S = 86_400.0
EFFECTS_S = (3, 12)
"""How long each effect of a slow pass takes: together more than the lease lasts, alone, and those of one run, less."""

WHICH = st.integers(0, 5)
ACCIDENTS = ("death", "death here", "sleep", "error", "cancel", "jobs start", "jobs complete")
TIMES_S = (15, 61, 130, 601, 3700)
CURABLE = [name for name in FATES if not FATES[name].classes & {"deterministic", "diverged", "cancelled"}]
ENDINGS = st.sampled_from([*CURABLE, *CURABLE, *FATES])
RUNS_PER_JOB = (1, 1, 2, 3)
WISHES = 3
"""Changes of mind of the user in one history; each may end runs, and more would leave little to see."""


class Machine(RuleBasedStateMachine):
    """Any history of passes, jobs, users and accidents."""

    store: Store
    clock: Clock
    wishes = disasters = saved = 0

    @initialize(
        builtin=st.booleans(),
        nodes=st.sampled_from([1, 1, 2]),
        runs_per_job=st.sampled_from(RUNS_PER_JOB),
        lanes=st.sampled_from([1, 2]),
        accounting=st.booleans(),
        error_s=st.sampled_from([0.0, 0.0, 3600.0, -3600.0]),
        nodes_error_s=st.sampled_from([0.0, 0.0, -700.0, 2 * DAY_S, -2 * DAY_S]),
        crash=st.integers(0, 2),
        infra=st.integers(1, 3),
        oom=st.integers(0, 2),
        backoff_s=st.sampled_from([0, 30]),
        search=st.sampled_from([False, False, True]),
    )
    def begin(
        self, builtin: bool, nodes: int, runs_per_job: int, lanes: int, accounting: bool, error_s: float,
        nodes_error_s: float, crash: int, infra: int, oom: int, backoff_s: int, search: bool = False,
    ) -> None:  # fmt: skip
        retry = {"crash": crash, "infra": infra, "oom": oom, "host_oom": oom, "backoff_s": backoff_s}
        spec = make_spec(
            builtin=builtin, nodes=nodes, runs_per_job=runs_per_job, lanes=lanes, retry=retry, search=search
        )
        clocks = {"error_s": error_s, "nodes_error_s": nodes_error_s}
        self.world = World(self.store, self.clock, spec, accounting=accounting, **clocks)
        self.cluster = self.world.cluster

    # -- the program ---------------------------------------------------------------------------------------------

    @rule(leader=st.integers(0, 1))
    def reconcile(self, leader: int) -> None:
        self._pass(leader)

    @rule(leader=st.integers(0, 1), sbatch=st.sampled_from(SUBMISSIONS), squeue=st.sampled_from(LOOKS))
    def reconcile_on_a_bad_day(self, leader: int, sbatch: str, squeue: str) -> None:
        self.cluster.sbatch, self.cluster.squeue = sbatch, squeue
        self._pass(leader, sbatch == "unreachable" or sbatch.endswith("no answer") or squeue == "unreachable")

    @rule(
        leader=st.integers(0, 1),
        effect=st.integers(1, 24),
        accident=st.sampled_from(ACCIDENTS),
        sbatch=st.sampled_from(SUBMISSIONS),
        which=WHICH,
    )
    def reconcile_with_an_accident(self, leader: int, effect: int, accident: str, sbatch: str, which: int) -> None:
        self.cluster.sbatch = sbatch
        with self.world.effects.expecting(effect, self._accident(accident, leader, which)):
            self._pass(leader, trouble=True)

    @rule(leader=st.integers(0, 1), effect_s=st.sampled_from(EFFECTS_S), sbatch=st.sampled_from(SUBMISSIONS))
    def reconcile_slowly(self, leader: int, effect_s: int, sbatch: str) -> None:
        """A pass that takes long, while the other process would like to work."""
        self.cluster.sbatch = sbatch
        with self.world.slowed(1 - leader, effect_s):
            self._pass(leader, trouble=sbatch == "unreachable" or sbatch.endswith("no answer"))

    # -- the cluster ---------------------------------------------------------------------------------------------

    @rule(fates=st.lists(ENDINGS, min_size=3, max_size=3), steps=st.integers(0, 3))
    def a_round(self, fates: list[str], steps: int) -> None:
        """What is usual: a pass, and every job begins, works and ends."""
        self._pass(0)
        self.jobs_start()
        for job, fate in zip(self._ending(), itertools.cycle(fates), strict=False):
            self.cluster.work(job, steps)
            if job.training:
                self.cluster.end(job, FATES[fate])
        self._pass(0)

    @precondition(lambda self: self.cluster.pending())
    @rule()
    def jobs_start(self) -> None:
        for job in self.cluster.pending():
            self.cluster.start(job)

    @precondition(lambda self: len(self.cluster.pending()) > 1)
    @rule(which=WHICH)
    def a_job_starts(self, which: int) -> None:
        for job in every(self.cluster.pending(), which):
            self.cluster.start(job)

    @precondition(lambda self: self.cluster.training())
    @rule(which=WHICH, steps=st.integers(1, 3))
    def a_job_works(self, which: int, steps: int) -> None:
        for job in every(self.cluster.training(), which):
            self.cluster.work(job, steps)

    @precondition(lambda self: self._ending())
    @rule(which=WHICH, fate=ENDINGS, late=st.booleans())
    def a_job_ends(self, which: int, fate: str, late: bool) -> None:
        for job in every(self._ending(), which):
            self.cluster.end(job, FATES[fate], late=late, which=which)

    @precondition(lambda self: self.cluster.pending())
    @rule(which=WHICH, fate=st.sampled_from(sorted(PENDING_FATES)))
    def a_waiting_job_ends(self, which: int, fate: str) -> None:
        for job in every(self.cluster.pending(), which):
            self.cluster.end(job, PENDING_FATES[fate])

    @precondition(lambda self: self.cluster.silent())
    @rule(which=WHICH)
    def a_late_word_arrives(self, which: int) -> None:
        for job in every(self.cluster.silent(), which):
            self.cluster.say(job)

    @precondition(lambda self: self.disasters == 0 and (self.cluster.pending() or self.cluster.running()))
    @rule(zombies=st.booleans())
    def slurm_loses_its_state(self, zombies: bool) -> None:
        self.disasters += 1
        self.cluster.lose_state(zombies=zombies)

    @precondition(lambda self: self.saved == 0)
    @rule()
    def the_store_is_saved(self) -> None:
        self.saved = 1
        self.world.save_store()

    @precondition(lambda self: self.saved == 1)
    @rule()
    def the_store_goes_back(self) -> None:
        self.saved = 2
        self.world.restore_store()

    @rule(seconds=st.sampled_from(TIMES_S))
    def time_passes(self, seconds: int) -> None:
        self.world.clock.now_s += seconds

    # -- the user ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.wishes < WISHES and self.world.cancellable())
    @rule(which=WHICH)
    def user_cancels(self, which: int) -> None:
        self.wishes += 1
        for run in every(self.world.cancellable(), which):
            self.world.cancel(run)

    @precondition(lambda self: self.world.retryable())
    @rule(which=WHICH)
    def user_retries(self, which: int) -> None:
        for run in every(self.world.retryable(), which):
            self.world.retry(run)

    @precondition(lambda self: self.wishes < WISHES and not self.world.searches)
    @rule(depths=st.sets(st.sampled_from([*DEPTHS, 4]), min_size=1))
    def user_changes_the_spec(self, depths: set[int]) -> None:
        self.wishes += 1
        self.world.wish_for(depths)

    # -- what must hold ------------------------------------------------------------------------------------------

    @invariant()
    def promises_hold(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            if sys.exc_info()[0] is None:
                self._settle()
        finally:
            self.world.close()

    # -- helpers -------------------------------------------------------------------------------------------------

    def _ending(self) -> list[Job]:
        """The jobs that can end now, by themselves or not."""
        return [job for job in self.cluster.running() if job.training]

    def _pass(self, leader: int, trouble: bool = False) -> None:
        """One pass, of which nothing may come but what the loop knows how to go on from."""
        try:
            self.world.run_pass(leader)
        except LeaseHeld:
            pass
        except (StoreUnreachable, StaleLease, Unreachable):
            assert trouble, "nothing had happened"
        except Killed as killed:
            self.world.bury(leader, on_this_host=killed.args == ("here",))

    def _accident(self, name: str, leader: int, which: int) -> Callable[[Exception], None]:
        def happens(usual: Exception) -> None:
            match name:
                case "death":
                    raise Killed
                case "death here":
                    raise Killed("here")
                case "sleep":
                    self.world.takes_over(1 - leader)
                case "error":
                    raise usual
                case "cancel":
                    self.user_cancels(which)
                case "jobs start":
                    self.jobs_start()
                case "jobs complete":
                    self.cluster.finish_all()

        return happens

    def _settle(self) -> None:
        """No more accidents: all that is wanted comes to its end."""
        rounds = SEARCH_ROUNDS if self.world.searches else 1
        for _ in range(rounds * MOST_PASSES + RECALL_PASSES * self.world.promises.most_forgotten()):
            self.world.clock.now_s += PASS_S
            done = self.world.run_pass(0)
            self.world.check()
            if done.settled and not self.cluster.training():
                break
            self.cluster.finish_all()
        else:
            raise AssertionError(f"not settled: {[(run.name, run.state, run.reason) for run in self.world.runs()]}")
        self.world.check_end()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Iterator[Store]:
    with in_memory() as folder:
        made = clock.rule(Store.open(f"sqlite:///{folder}/campaign.db", create=True))
        yield made
        made.close()


@pytest.mark.timeout(1800 + 10 * EXAMPLES)
def test_every_history_keeps_the_promises(store: Store, clock: Clock) -> None:
    class Here(Machine):
        pass

    Here.store, Here.clock = store, clock
    how: Any = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        print_blob=True,
        derandomize="MACHINE_EXAMPLES" not in os.environ,  # the same histories for every change; `test-all` explores
        phases=PHASES,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Here, settings=how)


@pytest.fixture
def here(store: Store, clock: Clock) -> Iterator[Machine]:
    class Here(Machine):
        pass

    Here.store, Here.clock = store, clock
    made = Here()
    quiet = {"accounting": False, "error_s": 0.0, "nodes_error_s": 0.0, "builtin": False, "backoff_s": 30}
    made.begin(crash=0, infra=1, oom=0, nodes=2, runs_per_job=1, lanes=1, **quiet)
    yield made
    made.world.close()


def test_a_slow_pass_does_not_wait_for_the_agents_that_it_cancels(here: Machine) -> None:
    here.reconcile(leader=0)
    here.jobs_start()
    for which in range(3):
        here.user_cancels(which=which)
    here.reconcile_slowly(effect_s=12, leader=0, sbatch="taken")
    here.promises_hold()
