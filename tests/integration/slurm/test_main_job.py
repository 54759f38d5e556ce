"""One spec on a real Slurm with PostgreSQL: everything that befalls a campaign, and it ends as it should."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from dscampaign.db.states import RunState
from dscampaign.files.atomic_files import read_json
from dscampaign.tests.faults.trial import stand_in
from dscampaign.tests.support import LIGHT, SCRIPTS
from dscampaign.tests.support.campaigns import TEXT, Observed, batch_of, open_store, run_to_end, submit
from dscampaign.tests.support.postgres import PostgresServer
from dscampaign.tests.support.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.training

SLOW = SCRIPTS / "slow.py"
SPEC = Path(__file__).parent / "main_job.yaml"
CHECKPOINT_EVERY = 5
SAVES_EVERY = 20
"""Steps between two checkpoints of the run that meets its time limit."""
LOSS_TOLERANCE = 1e-5
"""Relative. The same samples in fp32, summed in another order."""


class Trouble:
    """What befalls three runs, once each, when they have something to lose.

    A job of higher priority takes the node of the preemptable one. One gets the signal that Slurm sends ahead of a time
    limit. The time limit of the last is shortened to what it has used, so that Slurm ends it however long it took to
    start.
    """

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster
        self._ahead = {
            "case-preempted": (CHECKPOINT_EVERY, self._preempt),
            "case-warned": (CHECKPOINT_EVERY, self._warn),
            "case-time-limit": (SAVES_EVERY, self._end_its_time),
        }

    def __call__(self, seen: Observed) -> None:
        for name, (interval, befall) in list(self._ahead.items()):
            attempts = seen.attempts[name]
            if attempts and (attempts[-1].last_step or 0) > interval + 1:
                del self._ahead[name]
                befall(attempts[-1].job_id or "")

    def _preempt(self, _: str) -> None:
        self._cluster.sbatch("sleep 3", "--partition=h100", "--nodelist=gpu004", "--gpus-per-node=8")

    def _warn(self, job: str) -> None:
        self._cluster.run("scancel", "--signal=USR2", job)

    def _end_its_time(self, job: str) -> None:
        self._cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=1")


@pytest.fixture(scope="module")
def done(slurm: SlurmCluster, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """The campaign after it has settled."""
    folder = tmp_path_factory.mktemp("main-job")
    spec = folder / "spec.yaml"
    text = SPEC.read_text()
    for name, value in {"text": TEXT, "slow": SLOW, "python": stand_in(folder), "light": LIGHT}.items():
        text = text.replace(f"{{{name}}}", str(value))
    spec.write_text(text)
    store = open_store(postgres.new_database())
    campaign = submit(spec, folder, store)
    yield run_to_end(store, campaign, each_pass=Trouble(slurm), poll_s=1)
    store.close()


def test_every_run_ends_in_the_state_that_it_deserves(done: Observed) -> None:
    failed = {name for name, state in done.states().items() if state is RunState.FAILED}
    completed = {name for name, state in done.states().items() if state is RunState.COMPLETED}
    assert failed == {"case-config-error"}, [(run.name, run.reason) for run in done.runs.values()]
    assert len(completed) == len(done.runs) - 1


def test_every_step_of_every_finished_run_is_in_the_store_exactly_once(done: Observed) -> None:
    for name, run in done.runs.items():
        if run.state is RunState.COMPLETED:
            assert done.steps(name) == list(range(1, (run.target_step or 0) + 1)), name


def test_a_run_spans_two_nodes(done: Observed) -> None:
    [attempt] = done.attempts["case-two-nodes"]
    assert (attempt.nodes, attempt.world_size) == (2, 2)
    assert len({node["host"] for node in attempt.evidence["nodes"]}) == 2


def test_out_of_memory_is_tried_smaller_with_the_same_global_batch(done: Observed) -> None:
    attempts = done.attempts["case-oom"]
    assert [a.failure_class for a in attempts[:-1]] == ["oom"] * (len(attempts) - 1)
    assert "can't allocate memory" in attempts[0].evidence["line"]["text"]
    assert all(batch_of(before)[0] > batch_of(after)[0] for before, after in pairwise(attempts))
    assert {batch_of(attempt)[1] for attempt in attempts} == {32}
    assert len(done.steps("case-oom")) == 2


def test_the_smaller_micro_batch_learns_the_same(done: Observed) -> None:
    undisturbed, smaller = done.metrics("case-fits"), done.metrics("case-oom")
    assert [row.loss for row in smaller] == pytest.approx([row.loss for row in undisturbed], rel=LOSS_TOLERANCE)
    assert smaller[-1].eval_loss == pytest.approx(undisturbed[-1].eval_loss, rel=LOSS_TOLERANCE)


def test_a_preempted_run_repeats_at_most_one_checkpoint_interval(done: Observed) -> None:
    first, *_, last = done.attempts["case-preempted"]
    assert (first.failure_class, last.state) == ("preempted", "completed")
    reached, resumed = first.last_step or 0, last.start_step or 0
    assert CHECKPOINT_EVERY <= resumed < (done.runs["case-preempted"].target_step or 0)
    assert 0 <= reached - resumed <= CHECKPOINT_EVERY  # 0 where it came between a checkpoint and the next step


def test_a_mistake_is_tried_exactly_once_and_explained(done: Observed) -> None:
    [attempt] = done.attempts["case-config-error"]
    assert attempt.failure_class == "deterministic"
    assert "no_such_key" in done.runs["case-config-error"].reason


def test_a_run_that_is_killed_by_its_time_limit_finishes_on_resume(done: Observed) -> None:
    attempts = done.attempts["case-time-limit"]
    assert [a.failure_class for a in attempts[:-1]] == ["time_limit"] * (len(attempts) - 1)
    assert len(attempts) > 1
    assert all((b.start_step or 0) >= (a.start_step or 0) + SAVES_EVERY for a, b in pairwise(attempts))


def test_a_run_that_heeds_the_warning_repeats_nothing(done: Observed) -> None:
    stopped, resumed = done.attempts["case-warned"]
    assert stopped.failure_class == "stopped"
    assert CHECKPOINT_EVERY < (stopped.last_step or 0) < 60
    assert resumed.start_step == stopped.last_step


def test_nothing_ran_twice(done: Observed, slurm: SlurmCluster) -> None:
    for name, attempts in done.attempts.items():
        for attempt in attempts:
            claim = read_json(Path(attempt.spool_path).parent / "claim")
            assert claim is not None
            assert claim["job_id"] == attempt.job_id, name
    names = {attempt.token for attempts in done.attempts.values() for attempt in attempts}
    jobs = slurm.run("sacct", "-X", "-n", "-P", f"--name={','.join(names)}", "--format=JobID").splitlines()
    assert len(jobs) == sum(len(attempts) for attempts in done.attempts.values())


def test_attempts_of_one_shape_share_a_job_array(done: Observed) -> None:
    first = [attempts[0] for attempts in done.attempts.values()]
    alike = {done.runs[f"case-{name}"].id for name in ("fits", "config-error")}
    assert len({attempt.token for attempt in first if attempt.run_id in alike}) == 1
