"""Slurm's commands: how they are called and how their answers are read. The commands are scripts on PATH."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from inspect import getattr_static, signature
from pathlib import Path
from typing import Any

import pytest
import submitit

from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors import slurm as slurm_module
from dscampaign.orchestrator.executors import slurm_commands
from dscampaign.orchestrator.executors.base import (
    ArrayTooLarge,
    JobArray,
    JobView,
    SubmissionRefused,
    SubmissionUnclear,
)
from dscampaign.orchestrator.executors.job_request import new_token
from dscampaign.orchestrator.executors.sbatch_answer import REFUSED
from dscampaign.orchestrator.executors.slurm import SlurmExecutor, job_name
from dscampaign.tests.support.fake_slurm import FakeSlurm


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{fake.folder}:{os.environ['PATH']}")
    return fake


def batch(tmp_path: Path, size: int = 2, **resources: Any) -> JobArray:
    folder = tmp_path / "batches" / "abc"
    folder.mkdir(parents=True)
    return JobArray("abc", job_name("abc"), folder, size, resources)


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
    return f"{job_id}|{state}|{reason}|1000|1010|{end}|{node}|{user}|dscampaign-{token}\n"


def sacct_line(
    job_id: str, state: str, code: str = "0:0", *, name: str = "dscampaign-abc", end: str = "1100", user: int = ME
) -> str:
    return f"{job_id}|{state}|{code}|1000|1010|{end}|n1|{user}|{name}\n"


# -- submission --------------------------------------------------------------------------------------------------


def test_a_batch_is_one_array_with_its_token_in_name_and_comment(slurm: FakeSlurm, tmp_path: Path) -> None:
    resources = {"partition": "h100", "nodes": 2, "mem": "64G", "array_parallelism": 64, "signal_delay_s": 60}
    extra = {"additional_parameters": {"mail-type": "END"}, "setup": ["module load cuda"]}
    ids = SlurmExecutor().submit(batch(tmp_path, 3, **resources, **extra))
    assert ids == ["12_0", "12_1", "12_2"]
    [call] = slurm.calls
    assert call.options >= {
        "--array=0-2%3",
        "--job-name=dscampaign-abc",
        "--comment=dscampaign:abc",
        "--ntasks-per-node=1",
        "--nodes=2",
        "--no-requeue",
        "--signal=USR2@60",
        "--mail-type=END",
    }
    srun = next(line for line in call.script.splitlines() if line.startswith("srun "))
    assert "--kill-on-bad-exit=0" in srun
    assert srun.endswith(f"-u -m dscampaign.jobs.agent {tmp_path}/batches/abc")
    assert call.script.index("module load cuda") < call.script.index("srun ")


PRIVATE = {
    "_submitit_command_str": ["self"],
    "_make_submission_file_text": ["self", "command", "uid"],
    "_make_submission_command": ["self", "submission_file_path"],
}
"""What the executor uses of submitit's that is private, with the parameters that it gives."""


@pytest.mark.parametrize("name", PRIVATE)
def test_submitit_still_has_what_is_used_of_it(name: str) -> None:
    """A release without it shall fail here, by name, before it fails at the first `submit` (docs/adr/0011)."""
    member = getattr_static(submitit.SlurmExecutor, name)
    function: Any = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    assert list(signature(function).parameters) == PRIVATE[name]


def test_one_attempt_is_an_array_too(slurm: FakeSlurm, tmp_path: Path) -> None:
    assert SlurmExecutor().submit(batch(tmp_path, 1)) == ["12_0"]
    assert "--array=0-0%1" in slurm.calls[0].options


def test_the_job_that_a_reconciler_runs_in_leaves_no_mark(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "512")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    SlurmExecutor().submit(batch(tmp_path))
    assert {k for k in slurm.calls[0].env if k.startswith("SLURM_")} == {"SLURM_CONF"}
    assert os.environ["SLURM_JOB_ID"] == "7"


def test_what_the_spec_says_beats_the_environment_of_the_user(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables of sbatch overrule a script: another name, and no look would ever find the job."""
    for name in ("JOB_NAME", "ARRAY_INX", "REQUEUE", "PARTITION", "ACCOUNT"):
        monkeypatch.setenv(f"SBATCH_{name}", "mine")
    SlurmExecutor().submit(batch(tmp_path, partition="h100"))
    assert {k for k in slurm.calls[0].env if k.startswith("SBATCH_")} == {"SBATCH_ACCOUNT"}


def test_an_sbatch_that_hangs_may_have_submitted(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dscampaign.orchestrator.executors.slurm_commands.COMMAND_TIMEOUT_S", 0.2)
    (slurm.folder / "sbatch").write_text("#!/bin/sh\nexec sleep 5\n")
    with pytest.raises(SubmissionUnclear, match="did not respond within"):
        SlurmExecutor().submit(batch(tmp_path))


@pytest.mark.parametrize(
    ("err", "kind"),
    [
        ("sbatch: error: invalid partition specified: nope", SubmissionRefused),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", SubmissionUnclear),
        ("sbatch: error: something nobody has seen before", SubmissionUnclear),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", Unreachable),
        (
            "sbatch: error: Batch job submission failed: Resource temporarily unavailable: temporarily unable",
            Unreachable,
        ),
        ("sbatch: error: QOSMaxCpuPerJobLimit\nsbatch: error: violates policy (job submit limit)", SubmissionRefused),
    ],
)
def test_what_a_failed_sbatch_means(slurm: FakeSlurm, tmp_path: Path, err: str, kind: type[Exception]) -> None:
    slurm.answers("sbatch", err=err, code=1)
    with pytest.raises(kind) as caught:
        SlurmExecutor().submit(batch(tmp_path))
    said = err.split("\n", maxsplit=1)[0]
    assert (said.removeprefix("sbatch: error: ") if kind is SubmissionRefused else said) in str(caught.value)


@pytest.mark.parametrize(
    ("err", "for_now"),
    [
        ("sbatch: error: Batch job submission failed: Invalid job array specification", False),
        ("sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: violates policy (job submit limit)", True),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: violates policy (job submit limit)", True),
    ],
)
def test_a_batch_may_be_too_large(slurm: FakeSlurm, tmp_path: Path, err: str, for_now: bool) -> None:
    slurm.answers("sbatch", err=err, code=1)
    with pytest.raises(ArrayTooLarge) as caught:
        SlurmExecutor().submit(batch(tmp_path))
    assert caught.value.for_now is for_now


FAILED = "sbatch: error: Batch job submission failed: "
TIMED_OUT = f"{FAILED}Socket timed out on send/recv operation\n"
MUNGE = 'sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": Connection refused\n'
NOTES = (
    MUNGE.replace("refused", "refused (retrying)"),
    "Note: jobs in an Invalid partition are rejected. See QOSMaxSubmitJobPerUserLimit.\n",
    "sbatch: error: Requested time limit is invalid here; we set it to one day\n",
    "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying.\n",
    "Welcome! Your last job 4242 ended well.\n",
)


@pytest.mark.parametrize("note", NOTES)
@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (TIMED_OUT, SubmissionUnclear),
        (f"{FAILED}Unable to contact slurm controller (receive failure)\n", SubmissionUnclear),
        (f"{FAILED}Unexpected message received\n", SubmissionUnclear),
        (f"{FAILED}Invalid qos specification\n", SubmissionRefused),
        (f"{FAILED}Unable to contact slurm controller (connect failure)\n", Unreachable),
        (f"{FAILED}Invalid job array specification\n", ArrayTooLarge),
    ],
)
def test_no_note_before_the_decisive_line_changes_what_it_means(
    slurm: FakeSlurm, tmp_path: Path, note: str, last: str, kind: type[Exception]
) -> None:
    slurm.answers("sbatch", err=note + last, code=1)
    with pytest.raises(kind):
        SlurmExecutor().submit(batch(tmp_path))


@pytest.mark.parametrize(
    ("out", "err"),
    [
        ("12\n", f"{FAILED}Invalid qos specification\n"),  # the wrapper failed, not sbatch
        ("", f"{TIMED_OUT}{FAILED}Invalid qos specification\n"),  # the wrapper tried twice
        ("", f"sbatch: error: something new\n{FAILED}something newer\n"),
    ],
)
def test_where_a_job_may_exist_all_the_same_the_answer_is_unclear(
    slurm: FakeSlurm, tmp_path: Path, out: str, err: str
) -> None:
    slurm.answers("sbatch", out, err, 1)
    with pytest.raises(SubmissionUnclear):
        SlurmExecutor().submit(batch(tmp_path))


def test_without_a_credential_nothing_was_sent(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", err=f"{MUNGE}{FAILED}Protocol authentication error\n", code=1)
    with pytest.raises(Unreachable):
        SlurmExecutor().submit(batch(tmp_path))


@pytest.mark.parametrize(
    "answer", ["12", "12;main", "Submitted batch job 12", "Submitted batch job 12 on cluster main"]
)
@pytest.mark.parametrize("banner", ["", "Your last job 4242 ended well.\n", "job 4242\n", "512 hours are left\n"])
def test_a_job_id_is_read_from_sbatchs_own_answer(slurm: FakeSlurm, tmp_path: Path, banner: str, answer: str) -> None:
    slurm.answers("sbatch", f"{banner}{answer}\n{banner}")
    assert SlurmExecutor().submit(batch(tmp_path, 1)) == ["12_0"]
    assert "--parsable" in slurm.calls[0].args


def test_two_lines_that_could_be_the_answer_are_unclear(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", "512\n12\n")
    with pytest.raises(SubmissionUnclear, match="2 jobs"):
        SlurmExecutor().submit(batch(tmp_path))


def test_an_answer_without_a_job_id_is_unclear(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", "Thank you for using this cluster\n")
    with pytest.raises(SubmissionUnclear):
        SlurmExecutor().submit(batch(tmp_path))


def test_without_slurm_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable, match="cannot submit"):
        SlurmExecutor().submit(batch(tmp_path))
    with pytest.raises(Unreachable, match="squeue is not on PATH") as caught:
        look({"abc": {0}})
    assert "executor: local" in (caught.value.hint or "")


# -- look --------------------------------------------------------------------------------------------------------


def test_nothing_expected_asks_nobody(slurm: FakeSlurm) -> None:
    assert look({}) == ({}, True)
    assert slurm.calls == []


def test_one_squeue_is_enough_while_every_job_is_alive(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", squeue_line("12_0", "RUNNING") + squeue_line("12_1", "PENDING", reason="Priority", node=""))
    jobs, complete = look({"abc": {0, 1}})
    assert complete
    assert jobs["abc", 0] == JobView("abc", 0, "12_0", "RUNNING", "None", 1000.0, 1010.0, None, "", "n1")
    assert (jobs["abc", 1].pending, jobs["abc", 1].reason) == (True, "Priority")
    assert slurm.names() == ["squeue"]


def test_many_batches_are_one_squeue_and_one_sacct(slurm: FakeSlurm) -> None:
    look({f"t{i}": {0, 1} for i in range(50)})
    assert slurm.names() == ["squeue", "sacct"]
    assert any(a.startswith("--name=") and a.count(",") == 49 for a in slurm.calls[0].args)


def test_any_number_of_batches_is_listed_and_cancelled(slurm: FakeSlurm) -> None:
    """One argument of a command takes 128 KiB, all of them together 2 MiB."""
    last = f"{6999:012x}"
    slurm.answers("squeue", squeue_line("12_0", "RUNNING", token=last))
    jobs, complete = look({f"{number:012x}": {0} for number in range(7000)})
    assert (set(jobs), complete) == ({(last, 0)}, True)
    named = [arg for call in slurm.calls if call.name == "squeue" for arg in call.args if arg.startswith("--name=")]
    assert sum(arg.count("dscampaign-") for arg in named) == 7000
    SlurmExecutor().cancel([f"1234567_{index}" for index in range(130_000)])
    assert sum(len(call.args) for call in slurm.calls if call.name == "scancel") == 130_000


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


def test_sacct_is_asked_from_well_before_the_first_submission(slurm: FakeSlurm) -> None:
    look({"abc": {0}}, since_s=1_750_000_000.0)
    args = slurm.calls[-1].args
    assert args[args.index("-S") + 1].startswith("2025-06-14T")  # the day before
    assert "-X" not in args  # it would hide the step that ran out of memory


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
    slurm.answers("sacct", sacct_line("12_[0-9]", "PENDING") + sacct_line("15_0", "FAILED", name="my-dscampaign-abc"))
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


def test_the_jobs_of_a_campaign_are_those_of_its_owner_whoever_looks(slurm: FakeSlurm, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    if ME == 0:
        os.chown(folder, 4711, -1)
    owner = folder.stat().st_uid
    slurm.answers("squeue", squeue_line("12_0", "RUNNING", user=owner))
    assert SlurmExecutor(folder).list_jobs({"abc": {0}}, 1e9).jobs.keys() == {("abc", 0)}
    assert f"--user={owner}" in slurm.calls[0].args
    assert SlurmExecutor(tmp_path / "away").user == ME


def test_two_jobs_of_one_attempt_are_both_shown(slurm: FakeSlurm) -> None:
    """A request that was sent twice: which of them runs the attempt only its claim says."""
    slurm.answers("squeue", squeue_line("12_0", "RUNNING") + squeue_line("13_0", "FAILED", end="1100"))
    slurm.answers("sacct", sacct_line("12_0", "RUNNING") + sacct_line("13_0", "FAILED", "1:0"))
    found = SlurmExecutor().list_jobs({"abc": {0}}, 1e9)
    assert (found.jobs, found.complete) == ({}, True)
    assert [(job.job_id, job.state) for job in found.rivals["abc", 0]] == [("12_0", "RUNNING"), ("13_0", "FAILED")]
    slurm.answers("squeue", squeue_line("12_0", "PENDING") + squeue_line("13_0", "PENDING"))
    assert [job.job_id for job in SlurmExecutor().list_jobs({"abc": {0}}, 1e9).rivals["abc", 0]] == ["12_0", "13_0"]


def test_jobs_are_found_by_names_that_people_can_read_and_by_those_of_earlier_versions(slurm: FakeSlurm) -> None:
    token = new_token("nano.gpt", ["lr-0.001"])
    readable = squeue_line("12_0", "RUNNING").replace("dscampaign-abc", token)
    slurm.answers("squeue", readable + squeue_line("13_1", "RUNNING", token="5e0f"))
    jobs, _ = look({token: {0}, "5e0f": {1}})
    assert {key: job.job_id for key, job in jobs.items()} == {(token, 0): "12_0", ("5e0f", 1): "13_1"}
    [asked] = [arg for arg in slurm.calls[0].args if arg.startswith("--name=")]
    assert set(asked.removeprefix("--name=").split(",")) == {token, "dscampaign-5e0f"}


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


def test_without_accounting_a_task_that_was_cancelled_alone_is_missed_among_the_others(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.answers("sacct", err="Slurm accounting storage is disabled\n", code=1)
    slurm.answers("scontrol", "Configuration data\nMinJobAge               = 300 sec\n")
    lines = [squeue_line(f"12_{index}", "PENDING", node="") for index in range(4)]

    def looks(*shown: str, later_s: float = 10.0) -> dict[int, str]:
        now_s = time.monotonic()
        for text in ("".join(lines), "".join(shown)):
            slurm.answers("squeue", text)
            monkeypatch.setattr(executor._waiting, "_clock", lambda now_s=now_s: now_s)
            found = executor.list_jobs({"abc": {0, 1, 2, 3}}, 1e9)
            now_s += later_s
        return {index: job.state for (_, index), job in found.jobs.items()}

    def away() -> Any:
        raise Unreachable("scontrol did not respond")

    executor, ask = SlurmExecutor(), slurm_commands.ask
    assert looks(*lines[:2]) == {0: "PENDING", 1: "PENDING", 2: "CANCELLED", 3: "CANCELLED"}
    assert looks(squeue_line("12_0", "RUNNING"), squeue_line("12_1", "FAILED"))[3] == "CANCELLED"
    assert looks(lines[0], later_s=301) == {0: "PENDING"}  # it may have begun, ended and be forgotten
    assert looks() == {}  # a Slurm that lost its state knows none of them
    slurm.answers("scontrol")
    assert looks(lines[0]) == {0: "PENDING"}
    with monkeypatch.context() as patch:
        patch.setattr(slurm_module, "ask", lambda command: away() if command[0] == "scontrol" else ask(command))
        assert looks(lines[0]) == {0: "PENDING"}  # that it does not answer hides nothing
    slurm.answers("sacct", sacct_line("12_[0-3]", "PENDING"))
    assert looks(lines[0]) == {0: "PENDING"}  # with accounting that decides


def test_books_that_slurm_closed_on_a_waiting_array_are_no_wish(slurm: FakeSlurm) -> None:
    slurm.answers("sacct", sacct_line("12_[0-1]", "CANCELLED"))
    assert {job.state for job in look({"abc": {0, 1}})[0].values()} == {"GONE"}


def test_the_list_of_those_that_wait_is_asked_for_uncut(slurm: FakeSlurm) -> None:
    look({"abc": {0}})
    assert all(call.env["SLURM_BITSTR_LEN"] == "0" for call in slurm.calls)


def test_a_finished_job_in_squeue_is_looked_up_for_its_steps(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", squeue_line("12_0", "FAILED"))
    slurm.answers("sacct", sacct_line("12_0", "OUT_OF_MEMORY", "0:125"))
    assert look({"abc": {0}})[0]["abc", 0].state == "OUT_OF_MEMORY"
    slurm.answers("sacct", sacct_line("12_0", "RUNNING", end="Unknown"))  # it lags
    assert look({"abc": {0}})[0]["abc", 0].state == "FAILED"


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
    assert [(job.state, job.terminal) for job in jobs.values()] == [("COMPLETING", False), ("TIMEOUT", True)]
    slurm.answers("squeue", squeue_line("12_0", "FAILED", end=long_ago))
    assert look({"abc": {0}})[0]["abc", 0].terminal
    slurm.answers("squeue", squeue_line("12_0", "FAILED", end=now))
    slurm.answers("sacct", sacct_line("12_0", "FAILED") + sacct_line("12_0.0", "OUT_OF_MEMORY", "0:125", name="a"))
    assert look({"abc": {0}})[0]["abc", 0].step_out_of_memory


def test_without_an_accounting_no_failure_waits_for_it(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", squeue_line("12_0", "FAILED", end=str(int(time.time()))))
    slurm.answers("sacct", err="Slurm accounting storage is disabled\n", code=1)
    assert look({"abc": {0}})[0]["abc", 0].terminal


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


def test_a_job_that_only_the_accounting_takes_for_alive_is_gone(slurm: FakeSlurm) -> None:
    slurm.answers("sacct", sacct_line("12_0", "RUNNING", end="Unknown"))
    assert look({"abc": {0}}) == ({}, True)


def test_without_accounting_the_queue_is_all_there_is(slurm: FakeSlurm) -> None:
    slurm.answers("sacct", err="Slurm accounting storage is disabled\n", code=1)
    assert look({"abc": {0}}) == ({}, True)


def test_an_accounting_that_does_not_answer_leaves_the_look_incomplete(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", squeue_line("12_1", "RUNNING"))
    slurm.answers("sacct", err="sacct: error: slurm_persist_conn_open: Unable to connect\n", code=1)
    jobs, complete = look({"abc": {0, 1}})
    assert set(jobs) == {("abc", 1)}
    assert not complete


def test_an_accounting_that_hangs_does_not_hide_what_the_queue_shows(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dscampaign.orchestrator.executors.slurm_commands.COMMAND_TIMEOUT_S", 1.0)
    slurm.answers("squeue", squeue_line("12_0", "COMPLETED"))
    (slurm.folder / "sacct").write_text("#!/bin/sh\nexec sleep 9\n")
    jobs, complete = look({"abc": {0}})
    assert jobs["abc", 0].state == "COMPLETED"
    assert not complete


def test_a_queue_that_does_not_answer_is_an_error_not_an_empty_queue(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", err="slurm_load_jobs error: Unable to contact slurm controller\n", code=1)
    with pytest.raises(Unreachable, match="Unable to contact"):
        look({"abc": {0}})
    assert slurm.names() == ["squeue"]


def test_a_command_that_hangs_is_given_up(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    (slurm.folder / "squeue").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr("dscampaign.orchestrator.executors.slurm_commands.COMMAND_TIMEOUT_S", 0.2)
    with pytest.raises(Unreachable, match="did not respond"):
        look({"abc": {0}})


# -- cancel ------------------------------------------------------------------------------------------------------


def test_many_jobs_are_one_scancel(slurm: FakeSlurm) -> None:
    SlurmExecutor().cancel([])
    SlurmExecutor().cancel(["12_0", "12_1"])
    assert [(call.name, call.args) for call in slurm.calls] == [("scancel", ["12_0", "12_1"])]


def test_a_job_that_has_ended_by_itself_is_cancelled_too(slurm: FakeSlurm) -> None:
    slurm.answers("scancel", err="scancel: error: Kill job error on job id 12_0: Invalid job id specified\n", code=1)
    SlurmExecutor().cancel(["12_0"])
    slurm.answers("scancel", err="scancel: error: Unable to contact slurm controller\n", code=1)
    with pytest.raises(Unreachable):
        SlurmExecutor().cancel(["12_0"])


POLICY = "sbatch: error: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"

NEVER_TAKEN = [
    "sbatch: error: invalid partition specified: nope",
    "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
    "sbatch: error: Batch job submission failed: Requested node configuration is not available",
    "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
    "sbatch: error: Batch job submission failed: Invalid feature specification",
    "sbatch: error: Batch job submission failed: Invalid qos specification",
    "sbatch: error: Memory specification can not be satisfied",
    "sbatch: unrecognized option '--frob'",
    f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{POLICY}",
]


@pytest.mark.parametrize("text", NEVER_TAKEN)
def test_what_sbatch_will_never_take(text: str) -> None:
    assert REFUSED.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
        f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{POLICY}",
        "slurm_load_jobs error: Unexpected message received",
    ],
)
def test_what_sbatch_may_take_another_time(text: str) -> None:
    assert not REFUSED.search(text)


def test_a_job_starts_in_the_folder_that_was_recorded_with_no_module_of_it_first(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    array = replace(batch(tmp_path), workdir="/my project")
    SlurmExecutor().submit(array)
    script = (array.folder / "submission.sh").read_text()
    assert "#SBATCH --chdir='/my project'\n" in script
    assert " -P -u -m dscampaign.jobs.agent" in script


@pytest.mark.usefixtures("slurm")
def test_what_submitit_makes_no_job_of_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubmissionRefused, match=r"submitit: .*no_such_parameter"):
        SlurmExecutor().submit(batch(tmp_path, no_such_parameter=1))
