"""Jobs as squeue and sacct show them, whatever either leaves out, and as scancel ends them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from dscampaign.orchestrator.commands import shown_by
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors.base import JobView
from dscampaign.orchestrator.executors.job_request import new_token
from dscampaign.orchestrator.executors.slurm import SlurmExecutor
from dscampaign.tests.support.fake_slurm import FakeSlurm


def look(expected: dict[str, set[int]], since_s: float = 1e9) -> tuple[dict[tuple[str, int], JobView], bool]:
    found = SlurmExecutor().list_jobs(expected, since_s)
    return dict(found.jobs), found.complete


ME = os.geteuid()


def squeue_line(
    job_id: str,
    state: str,
    *,
    reason: str = "None",
    token: str = "abc",
    node: str = "n1",
    end: str = "N/A",
    user: int = ME,
) -> str:
    return f"{job_id}|{state}|{reason}|1000|1010|{end}|{node}|{user}|{token}\n"


def sacct_line(
    job_id: str, state: str, code: str = "0:0", *, name: str = "abc", end: str = "1100", user: int = ME
) -> str:
    return f"{job_id}|{state}|{code}|1000|1010|{end}|n1|{user}|{name}\n"


def test_one_squeue_is_enough_while_every_job_is_alive(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", squeue_line("12_0", "RUNNING") + squeue_line("12_1", "PENDING", reason="Priority", node=""))
    jobs, complete = look({"abc": {0, 1}})
    assert complete
    assert jobs["abc", 0] == JobView("abc", 0, "12_0", "RUNNING", "None", 1000.0, 1010.0, None, "", "n1")
    assert (jobs["abc", 1].pending, jobs["abc", 1].reason) == (True, "Priority")
    assert slurm.names() == ["squeue"]


@pytest.mark.parametrize(
    ("word", "pending"),
    [
        *(("REVOKED", False), ("STOPPED", False), ("SUSPENDED", False), ("RESIZING", False), ("SIGNALING", False)),
        *(("STAGE_OUT", False), ("COMPLETING", False), ("UPDATE_DB", False), ("A_WORD_OF_LATER", False)),
        *(("LAUNCH_FAILED", True), ("RECONFIG_FAIL", True), ("SPECIAL_EXIT", True), ("REQUEUE_FED", True)),
        *(("POWER_UP_NODE", True), ("EXPEDITING", True)),
    ],
)
def test_a_flag_or_an_unknown_word_in_place_of_a_state_ends_no_job(slurm: FakeSlurm, word: str, pending: bool) -> None:
    """Each may stand where the job will yet run, or runs: on another cluster, or after it was held."""
    slurm.answers("squeue", squeue_line("12_0", word, end="1100"))
    slurm.answers("sacct", sacct_line("12_0", "FAILED"))  # of a start before
    jobs, _ = look({"abc": {0}})
    assert [(job.terminal, job.pending) for job in jobs.values()] == [(False, pending)]
    slurm.answers("squeue")
    slurm.answers("sacct", sacct_line("12_0", word))
    assert look({"abc": {0}}) == ({}, True)


def test_any_number_of_batches_is_listed_and_cancelled(slurm: FakeSlurm) -> None:
    """One argument of a command takes 128 KiB, all of them together 2 MiB."""
    last = f"{4999:012x}"
    slurm.answers("squeue", squeue_line("12_0", "RUNNING", token=last))
    jobs, complete = look({f"{number:012x}": {0} for number in range(5000)})
    assert (set(jobs), complete) == ({(last, 0)}, True)
    named = [arg for call in slurm.calls if call.name == "squeue" for arg in call.args if arg.startswith("--name=")]
    assert sum(arg.count(",") + 1 for arg in named) == 5000
    assert max(map(len, named)) < 2**17
    SlurmExecutor().cancel([f"1234567_{index}" for index in range(10_000)])
    cancelled = [len(call.args) for call in slurm.calls if call.name == "scancel"]
    assert (sum(cancelled), max(cancelled) <= 5000) == (10_000, True)


def test_squeue_shows_hidden_partitions_and_no_default_of_the_user_hides_jobs(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUEUE_PARTITION", "debug")
    monkeypatch.setenv("SACCT_FORMAT", "JobID")
    look({"abc": {0}})
    assert {"--all", "--array", "--states=all"} <= set(slurm.calls[0].args)
    for call in slurm.calls:
        assert {k for k in call.env if k.startswith(("SQUEUE_", "SACCT_"))} == set()
        assert call.env["SLURM_TIME_FORMAT"] == "%s"


def test_no_variable_of_the_user_sends_a_command_elsewhere_or_spares_a_job(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ("SCANCEL_STATE", "SCANCEL_PARTITION", "SCONTROL_FEDERATION", "SLURM_CLUSTERS")
    for name in mine:
        monkeypatch.setenv(name, "mine")
    look({"abc": {0}})
    SlurmExecutor().cancel(["12_0"])
    assert slurm.names() == ["squeue", "sacct", "scancel"]
    assert not any(call.env.keys() & set(mine) for call in slurm.calls)


@pytest.mark.parametrize(
    ("lines", "state", "hidden"),
    [
        (sacct_line("12_0", "COMPLETED"), "COMPLETED", False),
        (sacct_line("12_0", "CANCELLED by 0", "0:15"), "CANCELLED", False),
        (sacct_line("12_0", "CANCELLED"), "GONE", False),  # nobody's wish: slurmctld lost its state
        (
            sacct_line("12_0", "FAILED", "1:0") + sacct_line("12_0.0", "OUT_OF_MEMORY", "0:125", name="a"),
            "FAILED",
            True,
        ),
        (
            sacct_line("12_0", "FAILED", "1:0") + sacct_line("12_0.batch", "FAILED", "0:125", name="batch"),
            "FAILED",
            True,
        ),
        (sacct_line("12_0", "FAILED", "1:0") + sacct_line("12_1.0", "OUT_OF_MEMORY", name="a"), "FAILED", False),
    ],
)
def test_what_the_accounting_says_of_an_ended_job(slurm: FakeSlurm, lines: str, state: str, hidden: bool) -> None:
    slurm.answers("sacct", lines)
    jobs, complete = look({"abc": {0}})
    assert complete
    view = jobs["abc", 0]
    assert (view.state, view.terminal, view.step_out_of_memory, view.ended_s) == (state, True, hidden, 1100.0)


def test_only_expected_array_tasks_of_ours_are_taken(slurm: FakeSlurm) -> None:
    other = "somebody-else|13_0|x\nCLUSTER: main\n" + squeue_line("12", "PENDING") + squeue_line("12_[3-9]", "PENDING")
    slurm.answers("squeue", other + squeue_line("12_5", "RUNNING") + squeue_line("14_0", "RUNNING", token="zzz"))
    slurm.answers("sacct", sacct_line("12_[0-9]", "PENDING") + sacct_line("15_0", "FAILED", name="my-abc"))
    assert look({"abc": {0}}) == ({}, True)


def test_only_jobs_of_this_user_are_asked_for_and_believed(slurm: FakeSlurm) -> None:
    """Names are public, and root sees everybody's jobs."""
    slurm.answers("squeue", squeue_line("12_0", "PENDING") + squeue_line("99_0", "TIMEOUT", user=ME + 1))
    jobs, complete = look({"abc": {0}})
    assert ({key: job.job_id for key, job in jobs.items()}, complete) == ({("abc", 0): "12_0"}, True)
    slurm.answers("squeue", squeue_line("99_0", "RUNNING", user=ME + 1))
    slurm.answers("sacct", sacct_line("12_0", "FAILED") + sacct_line("99_0", "COMPLETED", user=ME + 1))
    jobs, _ = look({"abc": {0}})
    assert {job.job_id: job.state for job in jobs.values()} == {"12_0": "FAILED"}
    assert {call.name for call in slurm.calls if f"--user={ME}" in call.args} == {"squeue", "sacct"}


def test_two_jobs_of_one_attempt_are_both_shown(slurm: FakeSlurm) -> None:
    """A request that was sent twice: which of them runs the attempt only its claim says."""
    slurm.answers("squeue", squeue_line("12_0", "RUNNING") + squeue_line("13_0", "FAILED", end="1100"))
    slurm.answers("sacct", sacct_line("12_0", "RUNNING") + sacct_line("13_0", "FAILED", "1:0"))
    found = SlurmExecutor().list_jobs({"abc": {0}}, 1e9)
    assert (found.jobs, found.complete) == ({}, True)
    assert [(job.job_id, job.state) for job in found.rivals["abc", 0]] == [("12_0", "RUNNING"), ("13_0", "FAILED")]
    slurm.answers("squeue", squeue_line("12_0", "PENDING") + squeue_line("13_0", "PENDING"))
    assert [job.job_id for job in SlurmExecutor().list_jobs({"abc": {0}}, 1e9).rivals["abc", 0]] == ["12_0", "13_0"]


@pytest.mark.parametrize(
    ("campaign", "runs", "words"),
    [
        ("nano", ["lr-0.001_zero-1"], "nano.lr-0.001_zero-1"),
        ("nano", ["lr-0.001_zero-1", "lr-0.001_zero-2"], "nano.lr-0.001_zero"),
        ("nano", ["lr-0.001", "lr-0.003"], "nano.lr"),
        ("nano", ["small", "small-r1", "small-r2"], "nano.small"),
        ("nano", ["abc", "abd"], "nano"),
        ("nano", [], "nano"),
        ("c" * 64, ["run"], "c" * 53),
        ("nano", ["x" * 100], "nano." + "x" * 48),
        ("nano" * 13, ["-".join("abc")], "nano" * 13),
    ],
)
def test_a_token_names_the_campaign_and_what_its_runs_share(campaign: str, runs: list[str], words: str) -> None:
    token = new_token(campaign, runs)
    assert token.rpartition(".")[0] == words
    assert len(token) <= 64
    assert new_token(campaign, runs) != token


@pytest.mark.parametrize(
    ("squeue", "sacct", "ends"),
    [
        # cancelled together: the array's one line says so
        ("", sacct_line("12_[0-3]", "CANCELLED by 7"), {0: 7, 1: 7, 2: 7, 3: 7}),
        ("", sacct_line("12_[0-3%2]", "CANCELLED by 7"), {0: 7, 1: 7, 2: 7, 3: 7}),
        ("", sacct_line("12_[1,3]", "CANCELLED by 7"), {0: 7, 1: 7, 2: 7, 3: 7}),
        ("", sacct_line("12_[1,...]", "CANCELLED by 7"), {0: 7, 1: 7, 2: 7, 3: 7}),
        ("", sacct_line("12", "CANCELLED by 7"), {0: 7, 1: 7, 2: 7, 3: 7}),
        (squeue_line("12", "CANCELLED", node=""), "", {0: None, 1: None, 2: None, 3: None}),
        ("".join(squeue_line(f"12_{n}", "CANCELLED", node="") for n in range(4)), "", dict.fromkeys(range(4))),
        (
            "".join(squeue_line(f"12_{n}", "CANCELLED", node="") for n in range(4)),
            sacct_line("12_[0-3]", "CANCELLED by 7"),
            {0: 7, 1: 7, 2: 7, 3: 7},
        ),
        # cancelled alone: the array no longer names it
        (squeue_line("12_0", "PENDING"), sacct_line("12_[0,2]", "PENDING"), {1: None, 3: None}),
        (squeue_line("12_0", "PENDING"), sacct_line("12_[0-2:2]", "PENDING"), {1: None, 3: None}),
        ("", sacct_line("12_0", "RUNNING") + sacct_line("12_1", "RUNNING"), {2: None, 3: None}),
        ("", sacct_line("12_0", "RUNNING") + sacct_line("12_[1,3]", "CANCELLED by 7"), {1: 7, 2: 7, 3: 7}),
        # it may wait: the list is cut, it is still named, or slurmctld lost its state
        (squeue_line("12_0", "PENDING"), sacct_line("12_[0,...]", "PENDING"), {}),
        ("", sacct_line("12_[0-3]", "PENDING"), {}),
        ("", sacct_line("12", "PENDING"), {}),
        # an array that was submitted twice
        ("", sacct_line("12_[0-3]", "CANCELLED by 7") + sacct_line("13_[0-3]", "PENDING"), {}),
        ("", "", {}),
    ],
)
def test_what_was_cancelled_in_the_queue_is_seen_at_once(
    slurm: FakeSlurm, squeue: str, sacct: str, ends: dict[int, int | None]
) -> None:
    slurm.answers("squeue", squeue.replace("N/A", str(int(time.time()))))
    slurm.answers("sacct", sacct)
    jobs, _ = look({"abc": {0, 1, 2, 3}})
    assert {index: job.cancelled_by for (_, index), job in jobs.items() if job.state == "CANCELLED"} == ends
    assert all(job.cancelled_in_queue for job in jobs.values() if job.state == "CANCELLED")
    assert all(job.job_id == f"12_{index}" for (_, index), job in jobs.items())


@pytest.mark.parametrize(
    ("ago_s", "sacct", "state"),
    [
        (60, sacct_line("12_0", "RUNNING", end="Unknown"), "COMPLETING"),
        (60, sacct_line("12_0", "CANCELLED by 0"), "CANCELLED"),
        (300, sacct_line("12_0", "RUNNING", end="Unknown"), "CANCELLED"),
    ],
)
def test_who_cancelled_a_job_is_waited_for_longer(slurm: FakeSlurm, ago_s: int, sacct: str, state: str) -> None:
    slurm.answers("squeue", squeue_line("12_0", "CANCELLED", end=str(int(time.time() - ago_s))))
    slurm.answers("sacct", sacct)
    assert look({"abc": {0}})[0]["abc", 0].state == state


def test_a_failure_waits_a_little_for_what_only_the_accounting_knows(slurm: FakeSlurm) -> None:
    """Squeue shows no step that ran out of memory; slurmdbd learns of it some seconds later."""
    now, long_ago = str(int(time.time())), str(int(time.time() - 60))
    slurm.answers("squeue", squeue_line("12_0", "FAILED", end=now) + squeue_line("12_1", "TIMEOUT", end=now))
    slurm.answers("sacct", sacct_line("12_0", "RUNNING", end="Unknown"))
    jobs, _ = look({"abc": {0, 1}})
    shown = {index: (job.state, job.terminal) for (_, index), job in jobs.items()}
    assert shown == {0: ("COMPLETING", False), 1: ("TIMEOUT", True)}
    slurm.answers("squeue", squeue_line("12_0", "FAILED", end=long_ago))
    assert look({"abc": {0}})[0]["abc", 0].terminal
    slurm.answers("squeue", squeue_line("12_0", "FAILED", end=now))
    slurm.answers("sacct", sacct_line("12_0", "FAILED") + sacct_line("12_0.0", "OUT_OF_MEMORY", "0:125", name="a"))
    assert look({"abc": {0}})[0]["abc", 0].step_out_of_memory


def test_a_job_that_the_queue_has_forgotten_is_looked_up_in_the_accounting(slurm: FakeSlurm) -> None:
    """MinJobAge is over: squeue is silent, or says that it has never heard of the job."""
    slurm.answers("sacct", sacct_line("12_0", "COMPLETED") + sacct_line("12_1", "PREEMPTED"))
    jobs, complete = look({"abc": {0, 1}})
    assert complete
    assert {key[1]: job.state for key, job in jobs.items()} == {0: "COMPLETED", 1: "PREEMPTED"}


def test_the_queue_beats_an_accounting_that_lags(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", squeue_line("12_0", "RUNNING") + squeue_line("12_1", "COMPLETED"))
    slurm.answers("sacct", sacct_line("12_0", "NODE_FAIL"))
    assert look({"abc": {0, 1}})[0]["abc", 0].state == "RUNNING"


def test_an_accounting_that_does_not_answer_leaves_the_look_incomplete(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", squeue_line("12_1", "RUNNING"))
    slurm.answers("sacct", err="sacct: error: slurm_persist_conn_open: Unable to connect\n", code=1)
    jobs, complete = look({"abc": {0, 1}})
    assert set(jobs) == {("abc", 1)}
    assert not complete


def test_a_queue_that_does_not_answer_is_an_error_not_an_empty_queue(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", err="slurm_load_jobs error: Unable to contact slurm controller\n", code=1)
    with pytest.raises(Unreachable, match="Unable to contact"):
        look({"abc": {0}})
    assert slurm.names() == ["squeue"]


def test_how_many_jobs_are_cancelled_is_counted(slurm: FakeSlurm) -> None:
    counts: list[tuple[str, int]] = []

    def through(items: Iterable[Any], noun: str, size: Callable[[Any], int] | None) -> Iterator[Any]:
        for item in items:
            counts.append((noun, size(item) if size else 1))
            yield item

    with shown_by(through):
        SlurmExecutor().cancel([f"12_{index}" for index in range(2500)])
    assert counts == [("jobs cancelled", 1000), ("jobs cancelled", 1000), ("jobs cancelled", 500)]


def test_a_job_that_has_ended_by_itself_is_cancelled_too(slurm: FakeSlurm) -> None:
    slurm.answers("scancel", err="scancel: error: Kill job error on job id 12_0: Invalid job id specified\n", code=1)
    SlurmExecutor().cancel(["12_0"])
    slurm.answers("scancel", err="scancel: error: Unable to contact slurm controller\n", code=1)
    with pytest.raises(Unreachable):
        SlurmExecutor().cancel(["12_0"])
