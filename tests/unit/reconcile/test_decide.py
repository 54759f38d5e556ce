"""The policy: what is done about every end, how often, when, and that doing it twice changes nothing."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dscampaign.db.records import AttemptRow
from dscampaign.db.states import AttemptState, RunState
from dscampaign.jobs.agent.evidence import RankEnd
from dscampaign.jobs.agent.node import Start
from dscampaign.jobs.agent.progress import Heartbeat, RankProgress
from dscampaign.orchestrator.formatting import clock_time
from dscampaign.orchestrator.reconcile.actions import (
    Adopt,
    CancelJob,
    Finish,
    MarkAttempt,
    Note,
    NoteAbsence,
    Revoke,
    SetRun,
    Submit,
)
from dscampaign.orchestrator.reconcile.attempt_state import transitions
from dscampaign.orchestrator.reconcile.decide import decide
from dscampaign.orchestrator.reconcile.snapshot import ABSENCE, Absence, AttemptView, Queue, RunView
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.orchestrator.spec.sections import RetryConfig
from dscampaign.orchestrator.spec.slurm_section import SlurmConfig
from dscampaign.tests.support.policy_world import (
    NOW_S,
    attempt_row,
    ended_row,
    job,
    of_kind,
    outcome,
    rank_error,
    run_row,
    run_view,
    snapshot,
)

DAY_S = 86_400.0
_UNWANTED = run_row(generation=1, desired="cancel")


def after(*past: AttemptRow, **values: Any) -> tuple[Submit | None, SetRun | None]:
    """What follows these ended attempts: a new attempt, and the run's new state."""
    actions = decide(snapshot(run_view(*past, **values), storage=""))
    submits, states = of_kind(Submit, actions), of_kind(SetRun, actions)
    return (submits[0] if submits else None), (states[-1] if states else None)


def tried_again(*past: AttemptRow, **values: Any) -> Submit:
    """The attempt that follows these."""
    submit, _ = after(*past, **values)
    assert submit is not None
    return submit


def given_up(*past: AttemptRow, **values: Any) -> SetRun:
    """The run's new state: no attempt follows these."""
    submit, change = after(*past, **values)
    assert submit is None
    assert change is not None
    return change


# -- what comes after which end --------------------------------------------------------------------------------


def test_a_new_run_is_submitted_with_the_micro_batch_of_the_spec() -> None:
    [submit] = decide(snapshot(run_view()))
    assert submit == Submit(run_row(), run_view().config, 1, 8, "first attempt", 1.0)


@pytest.mark.parametrize(
    ("kind", "state", "submits"),
    [
        ("completed", RunState.COMPLETED, False),
        ("deterministic", RunState.FAILED, False),
        ("diverged", RunState.FAILED, False),
        ("refused", RunState.FAILED, False),
        ("host_oom", RunState.FAILED, False),
        ("cancelled", RunState.CANCELLED, False),
        ("preempted", RunState.PENDING, True),
        ("time_limit", RunState.PENDING, True),
        ("node", RunState.PENDING, True),
        ("crash", RunState.PENDING, True),
        ("oom", RunState.PENDING, True),
        ("fragmentation", RunState.PENDING, True),
        ("foreign_oom", RunState.PENDING, True),
        ("gpu_fault", RunState.PENDING, True),
        ("checkpoint", RunState.PENDING, True),
        ("storage", RunState.PENDING, True),
    ],
)
def test_every_class_has_one_answer(kind: str, state: RunState, submits: bool) -> None:
    run = run_row(generation=1, state=RunState.RUNNING)
    submit, change = after(ended_row(1, kind, last_step=20), run=run)
    assert change is not None
    assert change.state is state
    assert (submit is not None) is submits
    if submit:
        assert submit.generation == 2


@pytest.mark.parametrize("kind", ["cancelled", "crash", "deterministic"])
def test_a_success_counts_also_with_later_attempts(kind: str) -> None:
    """A restored store may learn late that an attempt had completed before another one began."""
    change = given_up(ended_row(1, "completed", last_step=20), ended_row(2, kind), run=run_row(generation=2))
    assert change.state is RunState.COMPLETED


PLACE = "builtins.RuntimeError at train.py:9 main"


def crashed(generation: int, place: str = PLACE, last_step: int | None = 20, **values: Any) -> AttemptRow:
    """An attempt that an error ended that no rule knows."""
    row = ended_row(generation, "crash", reason="boom", last_step=last_step, **values)
    return replace(row, evidence={**row.evidence, "place": place})


def test_an_unknown_error_that_comes_back_at_the_same_place_is_not_tried_a_third_time() -> None:
    tried_again(crashed(1))
    change = given_up(crashed(1), ended_row(2, "preempted", last_step=10), crashed(3, last_step=25))
    assert change.state is RunState.FAILED
    assert change.reason == "boom · the same error at the same place ended attempt 1: retrying would not help"


@pytest.mark.parametrize(
    "before",
    [
        crashed(1, place="builtins.RuntimeError at train.py:12 main"),
        crashed(1, last_step=500),
        crashed(1, place=""),
        crashed(1, retry_epoch=7),
    ],
)
def test_another_place_step_or_epoch_is_another_error(before: AttemptRow) -> None:
    tried_again(before, crashed(2))
    tried_again(crashed(1, place=""), crashed(2, place=""))


@pytest.mark.parametrize(
    ("attempt", "values", "words"),
    [
        (ended_row(1, "oom", micro_batch=1), {}, "at micro-batch 1 · retry.allow may name activation_checkpointing"),
        (ended_row(1, "oom", micro_batch=None), {"micro_batch": None, "global_batch": None}, "set train.global_batch"),
        (ended_row(1, "oom"), {"retry": RetryConfig(oom=0)}, "retry.oom = 0 is used up"),
    ],
)
def test_out_of_memory_without_a_remedy_has_a_hint(attempt: AttemptRow, values: dict[str, Any], words: str) -> None:
    change = given_up(attempt, **values)
    assert change.state is RunState.FAILED
    assert words in change.reason


def test_memory_in_pieces_is_first_tried_whole_and_then_smaller() -> None:
    whole = tried_again(ended_row(1, "fragmentation"))
    smaller = tried_again(ended_row(1, "fragmentation"), ended_row(2, "fragmentation", changes="expandable_segments"))
    assert (whole.micro_batch, whole.changes) == (8, ("expandable_segments",))
    assert (smaller.micro_batch, smaller.changes) == (4, ("expandable_segments",))
    assert "micro-batch 8, tried at 4" in smaller.why


def test_at_micro_batch_1_the_allowed_changes_are_made_one_by_one() -> None:
    retry = RetryConfig(oom=9, allow=("activation_checkpointing", "offload_optimizer", "zero_stage"))
    changes: list[str] = []
    past: list[AttemptRow] = []
    while len(past) < 9:
        past.append(ended_row(len(past) + 1, "oom", micro_batch=1, changes=" ".join(changes)))
        submit, change = after(*past, retry=retry)
        if submit is None:
            break
        assert submit.micro_batch == 1
        changes = list(submit.changes)
    assert changes == [
        "activation_checkpointing",
        "zero_stage=1",
        "offload_optimizer",  # needs ZeRO
        "zero_stage=2",
        "zero_stage=3",
    ]
    assert change is not None
    assert change.state is RunState.FAILED


def test_a_change_that_was_necessary_once_stays() -> None:
    past = ended_row(1, "preempted", changes="expandable_segments activation_checkpointing", micro_batch=1, last_step=3)
    submit = tried_again(past, checkpoint_step=3)
    assert (submit.micro_batch, submit.changes) == (1, ("expandable_segments", "activation_checkpointing"))


def at(host: str, **values: Any) -> dict[str, Any]:
    """Evidence of a node."""
    return {"reason": "x", "hint": "", "host": host, "seen_s": NOW_S - 4000, **values}


def test_a_bad_node_is_excluded_for_every_run_unless_the_spec_names_its_nodes() -> None:
    bad = run_view(ended_row(1, "gpu", evidence=at("n1")))
    other = run_view(run=run_row(id=2, name="r2"))
    fixed = run_view(run=run_row(id=3, name="r3"), config=RunConfig(slurm=SlurmConfig(nodelist="n1")))
    submits = of_kind(Submit, decide(snapshot(bad, other, fixed, nodes=8)))
    assert [submit.exclude for submit in submits] == [("n1",), ("n1",), ()]


def test_an_ambiguous_gpu_error_goes_elsewhere_once_and_is_then_the_script_s() -> None:
    first = ended_row(1, "gpu_fault", evidence=at("n1"))
    submit = tried_again(first, retry=RetryConfig(infra=1, crash=0))
    assert submit.exclude == ("n1",)
    change = given_up(first, ended_row(2, "gpu_fault", evidence=at("n2")), retry=RetryConfig(infra=9, crash=0))
    assert "retry.crash = 0 is used up" in change.reason


def test_a_bad_checkpoint_costs_nothing_once() -> None:
    retry = RetryConfig(crash=0, infra=0)
    tried_again(ended_row(1, "checkpoint"), retry=retry)
    given_up(ended_row(1, "checkpoint"), ended_row(2, "checkpoint"), retry=retry)


def test_more_memory_is_asked_for_where_the_spec_names_a_size() -> None:
    first = tried_again(ended_row(1, "host_oom"), slurm=SlurmConfig(mem="1000M"))
    second = tried_again(
        ended_row(1, "host_oom"), ended_row(2, "preempted", last_step=5), slurm=SlurmConfig(mem="1000M")
    )
    assert (first.mem_scale, first.micro_batch) == (1.5, 8)
    assert second.mem_scale == 1.5  # what was necessary once stays


@pytest.mark.parametrize(
    ("kind", "budget"),
    [
        ("crash", 3),
        ("node", 8),
        ("storage", 8),
        ("oom", 4),
        ("fragmentation", 4),
        ("host_oom", 2),
        ("time_limit", 3),
        ("gpu_fault", 4),  # one is the machine's, three further tries
        ("checkpoint", 4),  # one is for nothing
    ],
)
def test_a_budget_is_the_number_of_further_tries(kind: str, budget: int) -> None:
    past = [ended_row(i + 1, kind, micro_batch=2 ** (9 - i)) for i in range(budget + 1)]
    values: dict[str, Any] = {"slurm": SlurmConfig(mem="1000M"), "global_batch": 2048}
    tried_again(*past[:-1], **values)
    change = given_up(*past, **values)
    assert change.state is RunState.FAILED
    assert "is used up" in change.reason


def test_a_time_limit_counts_as_a_crash_only_without_a_step() -> None:
    stuck = [ended_row(i, "time_limit", last_step=None) for i in range(1, 5)]
    moving = [ended_row(i, "time_limit", start_step=10 * i, last_step=10 * i + 10) for i in range(1, 5)]
    given_up(*stuck)
    tried_again(*moving)


def test_preemptions_with_progress_go_on_for_ever() -> None:
    past = [ended_row(i, "preempted", start_step=10 * i, last_step=10 * i + 5) for i in range(1, 30)]
    tried_again(*past, checkpoint_step=300)


def test_three_attempts_from_one_step_are_held() -> None:
    past = [ended_row(i, "preempted", start_step=20, last_step=30) for i in (1, 2, 3)]
    change = given_up(*past, checkpoint_every=50, checkpoint_step=20)
    assert change.state is RunState.HELD
    assert "set or lower train.checkpoint_every" in change.reason


@pytest.mark.parametrize(
    ("steps", "held"),
    [
        ([None, (0, 74), None], False),  # how far the third came, nobody knows
        ([None, None, None], True),
        ([(0, 9), None, (0, 9), None, (0, 9)], True),
        ([(0, 9), None, (9, 12), (12, 20)], False),
    ],
)
def test_where_a_script_began_that_made_no_step_is_not_known(steps: list[tuple[int, int] | None], held: bool) -> None:
    made = [step or (0, None) for step in steps]
    view = run_view(*(ended_row(i, "preempted", start_step=a, last_step=b) for i, (a, b) in enumerate(made, 1)))
    view = replace(view, run=replace(view.run, config={**view.run.config, "command": ["train.py"]}))
    assert bool(of_kind(Submit, decide(snapshot(view)))) is not held


def test_of_crashes_that_lead_nowhere_the_last_comes_first() -> None:
    past = [ended_row(i, "crash", start_step=0, last_step=3, evidence={"reason": "ValueError: odd"}) for i in (1, 2, 3)]
    _, change = after(*past)
    assert change is not None
    assert change.reason.startswith("ValueError: odd · 3 attempts ended without a new checkpoint; ")


def test_a_checkpoint_of_the_last_attempt_is_progress() -> None:
    past = [ended_row(i, "preempted", start_step=20, last_step=30) for i in (1, 2, 3)]
    tried_again(*past, checkpoint_step=30)


def test_failures_with_a_budget_of_their_own_do_not_hold_a_run() -> None:
    past = [ended_row(1, "oom"), ended_row(2, "oom", micro_batch=4), ended_row(3, "preempted", micro_batch=2)]
    tried_again(*past)


# -- when -------------------------------------------------------------------------------------------------------


def waits_s(kind: str, count: int, retry: RetryConfig | None = None, name: str = "r1") -> float:
    """Seconds from the end of the last of `count` attempts to the next one."""
    past = [ended_row(i + 1, kind, ended_s=NOW_S) for i in range(count)]
    run = run_row(name=name, generation=count)
    _, change = after(*past, run=run, retry=retry or RetryConfig(crash=99, infra=99))
    assert change is not None
    return (change.not_before_s or NOW_S) - NOW_S


def test_waits_double_up_to_a_limit_that_they_never_exceed() -> None:
    crash = [waits_s("crash", count) for count in (1, 2, 3, 4, 12)]
    assert all(0.75 * 30 * 2**i <= wait <= 30 * 2**i for i, wait in enumerate(crash[:4]))
    assert 0.75 * 1800 <= crash[4] <= 1800
    assert waits_s("node", 12) <= 600
    assert waits_s("node", 12, RetryConfig(infra=99, max_backoff_s=7)) <= 7
    assert waits_s("preempted", 1) == 0


def test_the_jitter_is_the_same_in_every_pass_and_differs_between_runs() -> None:
    assert waits_s("crash", 2) == waits_s("crash", 2)
    assert len({waits_s("crash", 2, name=f"r{i}") for i in range(10)}) > 5


def test_a_wait_counts_by_the_clock_of_the_store() -> None:
    late = ended_row(1, "crash", ended_s=NOW_S + 3600, evidence={"reason": "x", "hint": "", "seen_s": NOW_S - 40})
    tried_again(late)


def test_a_waiting_run_shows_its_time_once() -> None:
    past = ended_row(1, "crash", ended_s=NOW_S)
    _, change = after(past)
    assert change is not None
    assert change.not_before_s is not None
    waiting = run_row(generation=1, state=change.state, reason=change.reason, not_before_s=change.not_before_s)
    assert decide(snapshot(run_view(past, run=waiting))) == []
    assert of_kind(Submit, decide(snapshot(run_view(past, run=waiting), now_s=change.not_before_s)))


def test_only_so_many_attempts_are_active_at_once() -> None:
    def runs(count: int) -> list[RunView]:
        return [run_view(run=run_row(id=i, name=f"r{i}")) for i in range(1, count + 1)]

    assert len(of_kind(Submit, decide(snapshot(*runs(5), capacity=2)))) == 2
    assert len(of_kind(Submit, decide(snapshot(*runs(5), capacity=2, queue=Queue(length=1))))) == 1
    running = run_view(AttemptView(attempt_row(), job("RUNNING")), run=run_row(generation=1, id=9))
    assert len(of_kind(Submit, decide(snapshot(running, *runs(5), capacity=2)))) == 1
    ended = run_view(
        AttemptView(attempt_row(), job("COMPLETED"), outcomes=(outcome(),)), run=run_row(generation=1, id=9)
    )
    assert len(of_kind(Submit, decide(snapshot(ended, *runs(5), capacity=2)))) == 2


# -- what the newest attempt is now -----------------------------------------------------------------------------


def about(view: AttemptView, **values: Any) -> list[Any]:
    """What is decided about a queued or running run with this attempt, besides the run's state."""
    found = decide(snapshot(run_view(view, run=run_row(generation=1, state=RunState.RUNNING)), **values))
    return [action for action in found if not isinstance(action, SetRun)]


def test_a_job_without_a_known_id_is_adopted_by_its_token() -> None:
    row = attempt_row(state=AttemptState.INTENT, job_id=None)
    adopt, mark = about(AttemptView(row, job("RUNNING", submit_time_s=5.0)))
    assert adopt == Adopt(row, "7_0", 5.0)
    assert isinstance(mark, MarkAttempt)


def test_a_job_that_runs_the_attempt_under_another_id_is_adopted() -> None:
    """Sbatch's answer was somebody's banner: the id in the claim is right."""
    row = attempt_row(job_id="4242_0")
    assert of_kind(Adopt, about(AttemptView(row, job("PENDING")))) == []
    assert Adopt(row, "7_0", None) in about(AttemptView(row, job("RUNNING"), claimed=True))


def test_an_intent_that_no_job_answers_for_is_revoked_after_its_time() -> None:
    def intent(age_s: float) -> AttemptView:
        return AttemptView(
            attempt_row(state=AttemptState.INTENT, job_id=None, submit_time_s=None, created_s=NOW_S - age_s)
        )

    assert about(intent(59)) == []
    [revoke] = about(intent(61))
    assert isinstance(revoke, Revoke)
    assert revoke.why == "the submission led to no job"


@pytest.mark.parametrize("queued_s", [5, 86_400])
def test_a_job_that_slurm_forgot_before_it_began_is_revoked_much_later(queued_s: float) -> None:
    """Ten minutes after it was first not shown: one look that shows nothing takes no place in the queue away."""
    row = attempt_row(state=AttemptState.QUEUED, submit_time_s=NOW_S - queued_s, heartbeat_s=NOW_S - queued_s)
    [absent] = about(AttemptView(row))
    row = noted(row, absent)
    assert about(AttemptView(row), now_s=NOW_S + 599) == []
    [revoke] = about(AttemptView(row), now_s=NOW_S + 601)
    assert isinstance(revoke, Revoke)
    assert revoke.why == "job 7_0 disappeared from the queue before it began"
    assert NoteAbsence(row, None) in about(AttemptView(row, job("PENDING")), now_s=NOW_S + 601)


@pytest.mark.parametrize("complete", [True, False])
def test_an_unwanted_job_that_the_queue_no_longer_has_is_over_at_once(complete: bool) -> None:
    """A task that is cancelled alone in the queue leaves no trace; its claim keeps it from running after all."""
    row = attempt_row(state=AttemptState.QUEUED, submit_time_s=NOW_S - 5)
    gone = run_view(AttemptView(row), run=run_row(generation=1, desired="cancel", state=RunState.QUEUED))
    actions = decide(snapshot(gone, complete=complete))
    assert of_kind(CancelJob, actions) == []  # a controller that lost its state gives the number to another job
    assert of_kind(Revoke, actions) == [Revoke(row, wanted=False)]


def test_an_interrupted_attempt_waits_for_the_state_of_its_job() -> None:
    """A job in the queue may have been asked for before it began: how it ended is not known yet."""
    hidden = outcome(RankEnd(0, None, None), launcher_exit=-9, last_step=7)
    interrupted = outcome(RankEnd(0, None, None), launcher_exit=-15, ended_by="signal", last_step=7)
    for left in (hidden, interrupted):
        ended = AttemptView(attempt_row(), job("PENDING"), claimed=True, outcomes=(left,))
        actions = decide(snapshot(run_view(ended)))
        assert not of_kind(Finish, actions)
        assert not of_kind(CancelJob, actions)
        assert not of_kind(Submit, actions)


def test_an_unwanted_submission_without_an_answer_is_waited_for_to_be_cancelled() -> None:
    row = attempt_row(state=AttemptState.INTENT, job_id=None, submit_time_s=None, created_s=NOW_S - 30)
    run = run_row(generation=1, desired="cancel", state=RunState.QUEUED)
    assert of_kind(Revoke, decide(snapshot(run_view(AttemptView(row), run=run)))) == []
    shown = decide(snapshot(run_view(AttemptView(row, job("PENDING")), run=run)))
    assert [type(action) for action in shown if not isinstance(action, SetRun | MarkAttempt)] == [Adopt, CancelJob]
    late = replace(row, created_s=NOW_S - 61)
    assert Revoke(late, wanted=False) in decide(snapshot(run_view(AttemptView(late), run=run)))


def test_of_two_jobs_that_may_both_begin_nothing_is_concluded() -> None:
    row = attempt_row(state=AttemptState.INTENT, job_id=None, created_s=NOW_S - 9999, submit_time_s=None)
    view = AttemptView(row, rivals=("7_0", "8_0"))
    assert about(view) == []
    [said] = decide(snapshot(run_view(view, run=run_row(generation=1, state=RunState.QUEUED))))
    assert isinstance(said, SetRun)
    assert said.reason.startswith("Slurm has jobs 7_0 and 8_0 for this run")
    unwanted = run_view(view, run=run_row(generation=1, desired="cancel", state=RunState.QUEUED))
    cancelled = of_kind(CancelJob, decide(snapshot(unwanted)))
    assert [action.job_id for action in cancelled] == ["7_0", "8_0"]


def test_absence_proves_nothing_in_an_incomplete_listing() -> None:
    row = attempt_row(state=AttemptState.INTENT, job_id=None)
    assert about(AttemptView(row), complete=False) == []
    assert about(AttemptView(row), listed=False, complete=False) == []
    assert about(AttemptView(attempt_row(), outcomes=(outcome(),)), listed=False, complete=False) == []


def test_a_forgotten_job_is_judged_by_its_outcome_at_once_and_by_its_silence_late() -> None:
    [finish] = about(AttemptView(attempt_row(), outcomes=(outcome(),), claimed=True), complete=False)
    assert finish.verdict.kind == "completed"
    silent: dict[str, Any] = {"evidence": {ABSENCE: asdict(Absence(NOW_S - 700, ()))}}
    assert about(AttemptView(attempt_row(heartbeat_s=NOW_S - 500, **silent), claimed=True)) == []
    [finish] = about(AttemptView(attempt_row(heartbeat_s=NOW_S - 700, **silent), claimed=True))
    assert finish.verdict.kind == "lost"


def noted(row: AttemptRow, action: NoteAbsence) -> AttemptRow:
    """The attempt once that is recorded."""
    assert action.absence is not None
    return replace(row, evidence={ABSENCE: asdict(action.absence)})


@given(
    off_s=st.floats(-30 * DAY_S, 30 * DAY_S),
    beats=st.lists(st.sampled_from([None, 0.0, 0.3]), min_size=1, max_size=60),
    pass_s=st.sampled_from([1.0, 10.0, 61.0, 599.0]),
)
def test_a_silent_attempt_is_lost_with_any_clock_of_its_nodes(
    off_s: float, beats: list[float | None], pass_s: float
) -> None:
    """Beats: how long before a pass its agent gave a sign of life; None for none since the pass before."""
    row, heard_s = attempt_row(), NOW_S
    signs: tuple[Heartbeat, ...] = ()
    for number, beat in enumerate(beats):
        now_s = NOW_S + number * pass_s
        if beat is not None:
            heard_s, signs = now_s, (Heartbeat(ts=now_s - beat + off_s),)
        known = AttemptView(row, claimed=True, heartbeats=signs)
        found = about(known, now_s=now_s)
        assert bool(of_kind(Finish, found)) is (number > 0 and now_s - heard_s >= 600)
        if of_kind(Finish, found):
            break
        for action in of_kind(NoteAbsence, found):
            row = noted(row, action)


@pytest.mark.parametrize("claimed", [True, False])
def test_a_process_of_a_machine_that_is_gone_is_lost_once_it_was_silent_for_long(claimed: bool) -> None:
    """A container whose name is another one each time sees no process of the one before."""
    row, world = attempt_row(executor="local"), {"complete": False, "lost_grace_s": 0.0}
    for beat_s in (NOW_S, NOW_S + 300):
        alive = AttemptView(row, claimed=claimed, heartbeats=(Heartbeat(ts=beat_s),))
        [seen] = about(alive, now_s=beat_s, **world)
        row = noted(row, seen)
    silent = AttemptView(row, claimed=claimed, heartbeats=alive.heartbeats)
    [told] = of_kind(SetRun, decide(snapshot(run_view(silent, run=run_row(generation=1)), now_s=NOW_S + 301, **world)))
    assert told.reason.endswith(f"waiting for it until {clock_time(NOW_S + 900)}")
    assert about(silent, now_s=NOW_S + 899, **world) == []
    [end] = about(silent, now_s=NOW_S + 900, **world)
    assert end.verdict.kind == "lost" if isinstance(end, Finish) else isinstance(end, Revoke)


def test_a_job_that_shows_up_again_was_never_absent() -> None:
    row = attempt_row(evidence={ABSENCE: asdict(Absence(NOW_S - 700, ()))})
    assert NoteAbsence(row, None) in about(AttemptView(row, job("RUNNING"), claimed=True))


def test_an_interrupted_attempt_waits_for_the_accounting() -> None:
    """`scancel` while slurmdbd is away, and slurmctld has forgotten the job: without this its run would be resumed."""
    ranks = RankEnd(0, None, None), RankEnd(1, None, None)
    ended: dict[str, Any] = {"outcomes": (outcome(*ranks, ended_by="signal", last_step=50),), "claimed": True}
    row = attempt_row()
    [absent] = about(AttemptView(row, **ended), complete=False)
    assert isinstance(absent, NoteAbsence)
    row = noted(row, absent)
    assert about(AttemptView(row, **ended), complete=False, now_s=NOW_S + 500) == []
    back = about(AttemptView(row, **ended), now_s=NOW_S + 510)  # it may still lag
    assert [type(action) for action in back] == [NoteAbsence]
    told = about(AttemptView(row, job("CANCELLED"), **ended), now_s=NOW_S + 512)
    assert [action.verdict.kind for action in of_kind(Finish, told)] == ["cancelled"]
    assert of_kind(Finish, about(AttemptView(row, **ended), complete=False, now_s=NOW_S + 601))


@pytest.mark.parametrize("clock_s", [-3600.0, 3600.0])
def test_an_outcome_has_time_to_arrive_but_a_wrong_clock_costs_none(clock_s: float) -> None:
    fresh = AttemptView(attempt_row(), job("FAILED", ended_s=NOW_S - 3), claimed=True)
    assert about(fresh) == []
    off = AttemptView(attempt_row(), job("FAILED", ended_s=NOW_S + clock_s), claimed=True)
    assert of_kind(Finish, about(off))
    context = AttemptView(attempt_row(), job("COMPLETED", ended_s=NOW_S - 3), outcomes=(outcome(),))
    assert of_kind(Finish, about(context))


def test_finished_work_without_a_visible_outcome_is_done() -> None:
    every_step = attempt_row(last_step=100)
    [finish] = about(AttemptView(every_step, job("COMPLETED", ended_s=NOW_S - 30), claimed=True))
    assert finish.verdict.kind == "completed"
    lost = AttemptView(every_step, job("FAILED", ended_s=NOW_S - 30), claimed=True)
    assert [action.verdict.kind for action in of_kind(Finish, about(lost))] == ["crash"]


def test_the_outcome_of_a_completed_job_is_waited_for_but_not_for_ever() -> None:
    row = attempt_row(last_step=30)
    view = AttemptView(row, job("COMPLETED", ended_s=NOW_S - 60), claimed=True)
    [change] = decide(snapshot(run_view(view, run=run_row(generation=1, state=RunState.RUNNING))))
    assert isinstance(change, SetRun)
    assert "not visible in the shared folder yet: waiting until" in change.reason
    assert of_kind(Finish, about(AttemptView(row, job("COMPLETED", ended_s=NOW_S - 181), claimed=True)))


def test_a_job_that_is_completing_is_not_over() -> None:
    view = AttemptView(attempt_row(), job("COMPLETING"), outcomes=(outcome(),))
    assert about(view) == []


def test_a_job_that_is_gone_is_lost_unless_it_was_a_local_process_that_began() -> None:
    finish, *_ = about(AttemptView(attempt_row(), job("GONE", ended_s=None)))
    assert (finish.verdict.kind, finish.verdict.reason) == ("lost", "never started")
    for executor, kind in (("slurm", "lost"), ("local", "crash")):  # Slurm itself loses jobs
        finish, *_ = about(AttemptView(attempt_row(executor=executor), job("GONE", ended_s=None), claimed=True))
        assert finish.verdict.kind == kind


def test_a_running_attempt_is_marked_once_with_the_step_it_began_from() -> None:
    row = attempt_row(state=AttemptState.QUEUED, start_step=None)
    start = Start("7_0", "n1", "a", 1, "/ck", 40, 123.0)
    [mark] = about(AttemptView(row, job("RUNNING"), start=start))
    assert (mark.state, mark.start_step, mark.started_s) == (AttemptState.RUNNING, 40, 123.0)
    seen = replace(row, state=AttemptState.RUNNING, start_step=40)
    assert about(AttemptView(seen, job("RUNNING"), start=start)) == []


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "waiting: other jobs come first (Priority)"),
        ("AssocGrpGRES", "waiting: a limit of your account is reached (AssocGrpGRES)"),
        ("ResourcesOfTomorrow", "waiting: ResourcesOfTomorrow"),
    ],
)
def test_a_pending_job_shows_its_reason(reason: str, words: str) -> None:
    view = AttemptView(attempt_row(state=AttemptState.QUEUED), job("PENDING", reason=reason))
    [change] = decide(snapshot(run_view(view, run=run_row(generation=1, state=RunState.RUNNING))))
    assert isinstance(change, SetRun)
    assert change.state is RunState.QUEUED
    assert change.reason.startswith(words)
    assert bool(change.reason) is bool(words)


def test_without_an_outcome_the_steps_of_the_store_count() -> None:
    row = attempt_row(start_step=40, last_step=60)
    finish, change, submit = decide(snapshot(run_view(AttemptView(row, job("TIMEOUT"), claimed=True))))
    assert isinstance(finish, Finish)
    assert (finish.verdict.kind, finish.ended.start_step, finish.ended.last_step) == ("time_limit", 40, 60)
    assert isinstance(change, SetRun)
    assert isinstance(submit, Submit)
    assert submit.why == "reached Slurm's time limit, started again"  # its checkpoint is gone


# -- what is noticed of a running attempt -------------------------------------------------------------------------


def beat(idle_s: float, **ranks: int) -> Heartbeat:
    """Ranks that train, by the step at which they stand."""
    placed = {int(rank[1:]): RankProgress(step, "train") for rank, step in ranks.items()}
    return Heartbeat(ts=NOW_S, host="n1", idle_s=idle_s, phase="train", ranks=placed)


def watched(row: AttemptRow, idle_s: float, **values: Any) -> list[Any]:
    """What is decided about an attempt whose ranks have not moved for so long."""
    view = AttemptView(row, job("RUNNING"), heartbeats=(beat(idle_s, r0=120, r1=119),))
    run = run_row(generation=1, state=RunState.RUNNING)
    return decide(snapshot(run_view(view, run=run, **{"p99_step_s": 0.5, "steps_known": 40, **values})))


def test_a_hang_ends_the_run_and_names_the_ranks() -> None:
    note, cancel = watched(attempt_row(), 601)
    assert isinstance(note, Note)
    assert note.kind == "hang"
    assert "no step for 601 s" in note.message
    assert "rank 1 on n1 is stuck at step 119" in note.message
    assert cancel == CancelJob(attempt_row(), "7_0")


def test_its_job_is_ended_until_it_is_gone_and_then_it_hung() -> None:
    row = attempt_row(evidence={"hang": "no step for 601 s"})
    assert watched(row, 0) == [CancelJob(row, "7_0")]
    ended = outcome(RankEnd(0, None, None), RankEnd(1, None, None), ended_by="signal", launcher_exit=1, last_step=120)
    view = AttemptView(row, job("CANCELLED"), outcomes=(ended,), claimed=True)
    [finish] = of_kind(Finish, decide(snapshot(run_view(view, run=run_row(generation=1, state=RunState.RUNNING)))))
    assert (finish.verdict.kind, finish.verdict.reason) == ("hang", "no step for 601 s")


def test_a_hopeless_run_is_ended_and_fails_for_that() -> None:
    row = attempt_row()
    why = "a step takes 6 s, longer than prune.step_time_s = 5"
    assert watched(row, 0, hopeless=why) == [Note(row, "pruned", why), CancelJob(row, "7_0")]
    noted = attempt_row(evidence={"pruned": why})
    assert watched(noted, 0, hopeless=why) == [CancelJob(noted, "7_0")]
    saved = outcome(RankEnd(0, 85, None), RankEnd(1, 85, None), ended_by="signal", last_step=120)
    view = AttemptView(noted, job("CANCELLED"), outcomes=(saved,), claimed=True)
    actions = decide(snapshot(run_view(view, run=run_row(generation=1, state=RunState.RUNNING))))
    finish, change = actions
    assert isinstance(finish, Finish)
    assert (finish.verdict.kind, finish.verdict.reason) == ("pruned", why)
    assert isinstance(change, SetRun)
    assert (change.state, change.reason) == (RunState.FAILED, why)


@pytest.mark.parametrize(
    ("user", "nodes", "by", "claimed", "kind"),
    [
        (0, "gpu001", 0, False, "lost"),  # slurmd could not launch it, and cancelled it as root
        (0, "gpu001", 0, True, "cancelled"),  # it ran, and we are root ourselves
        (0, "None assigned", 0, False, "cancelled"),  # it waited in the queue
        (0, "", 0, False, "cancelled"),
        (1000, "gpu001", 1000, False, "cancelled"),  # the user, while its setup ran
        (1000, "gpu001", 1000, True, "cancelled"),
        (1000, "gpu001", 0, True, "lost"),  # an administrator, or Slurm itself
        (1000, "None assigned", 1001, False, "cancelled"),  # whoever takes it out of the queue wants it not to run
        (1000, "gpu001", None, True, "cancelled"),  # nobody knows
    ],
)
def test_only_the_user_cancels_a_run(user: int, nodes: str, by: int | None, claimed: bool, kind: str) -> None:
    view = AttemptView(attempt_row(), job("CANCELLED", nodes=nodes, cancelled_by=by), claimed=claimed)
    running = run_view(view, run=run_row(generation=1, state=RunState.RUNNING))
    [finish] = of_kind(Finish, decide(snapshot(running, user=user)))
    assert finish.verdict.kind == kind


def test_an_end_is_that_of_the_sizes_that_it_began_with() -> None:
    start = Start("7_0", "n1", "a", 1, "", 0, 123.0, 16, 2)
    view = AttemptView(attempt_row(), job("COMPLETED"), start=start, outcomes=(outcome(),))
    [finish] = of_kind(Finish, decide(snapshot(run_view(view))))
    assert (finish.attempt.micro_batch, finish.attempt.accumulation) == (16, 2)


def test_a_run_that_moved_on_after_all_has_not_hung() -> None:
    row = attempt_row(evidence={"hang": "no step for 601 s"})
    view = AttemptView(row, job("COMPLETED"), outcomes=(outcome(),))
    [finish] = of_kind(Finish, decide(snapshot(run_view(view))))
    assert finish.verdict.kind == "completed"


# -- what the user wants ----------------------------------------------------------------------------------------


def _unreadable() -> RunConfig:
    raise AssertionError("nothing of its configuration decides what follows")


@pytest.mark.parametrize("trace", [{"claimed": True}, {"outcomes": (outcome(),)}, {"row": attempt_row(last_step=100)}])
def test_a_cancelled_run_that_may_have_begun_is_judged_by_its_files(trace: dict[str, Any]) -> None:
    gone = job("CANCELLED", nodes="", started_s=None)
    view = AttemptView(**{"row": attempt_row(), "job": gone, **trace})
    with pytest.raises(AssertionError):
        next(iter(transitions(replace(run_view(view, run=_UNWANTED), read_config=_unreadable), view, snapshot())))


@pytest.mark.parametrize("ended_by", ["", "signal"])
def test_a_run_that_succeeded_before_it_could_be_cancelled_has_succeeded(ended_by: str) -> None:
    view = AttemptView(attempt_row(), job("COMPLETED"), outcomes=(outcome(ended_by=ended_by),))
    run = run_row(generation=1, desired="cancel", state=RunState.RUNNING)
    assert decide(snapshot(run_view(view, run=run)))[-1] == SetRun(run, RunState.COMPLETED, "")


def test_retry_gives_fresh_budgets_and_keeps_the_micro_batch_that_fitted() -> None:
    past = [ended_row(1, "oom"), *(ended_row(i, "crash", micro_batch=4) for i in range(2, 6))]
    submit = tried_again(*past, run=run_row(generation=5, retry_epoch=1))
    assert (submit.generation, submit.micro_batch, submit.why) == (6, 4, "asked for again")


def test_another_configuration_starts_afresh() -> None:
    past = [ended_row(i, "deterministic", micro_batch=1) for i in (1, 2)]
    submit = tried_again(*past, run=run_row(generation=2, config_hash="other"))
    assert (submit.generation, submit.micro_batch) == (3, 8)


def test_a_success_of_an_older_configuration_does_not_count() -> None:
    view = AttemptView(attempt_row(config_hash="old"), job("COMPLETED"), outcomes=(outcome(),))
    actions = decide(snapshot(run_view(view, run=run_row(generation=1))))
    assert [submit.generation for submit in of_kind(Submit, actions)] == [2]


@pytest.mark.parametrize(("config", "goes_on"), [({}, True), ({"command": ["train.py"]}, False)])
def test_a_success_counts_no_more_where_the_built_in_training_got_more_steps(
    config: dict[str, Any], goes_on: bool
) -> None:
    longer = run_row(generation=1, retry_epoch=1, target_step=200, config=config)
    submit, change = after(ended_row(1, "completed", last_step=100), run=longer)
    assert (submit and submit.why) == ("it has more steps now" if goes_on else None)
    assert (change is not None and change.state is RunState.COMPLETED) is not goes_on


# -- as a whole -------------------------------------------------------------------------------------------------


def test_the_end_is_recorded_before_the_successor_is_submitted() -> None:
    row = attempt_row(start_step=None)
    died = outcome(rank_error(0, "builtins.RuntimeError", "boom"), last_step=3)
    view = AttemptView(row, job("FAILED"), outcomes=(died,))
    retry = RetryConfig(backoff_s=0)
    kinds = [type(a) for a in decide(snapshot(run_view(view, retry=retry)))]
    assert kinds == [Finish, SetRun, Submit]


def test_all_first_repeats_come_before_any_second() -> None:
    points = [(0, 0), (0, 1), (1, 0), (1, 1)]
    runs = [run_view(run=run_row(id=n, name=f"r{n}", ordinal=n, repeat=r)) for n, (_, r) in enumerate(points)]
    submitted = [action.run.id for action in of_kind(Submit, decide(snapshot(*runs)))]
    assert submitted == [0, 2, 1, 3]
