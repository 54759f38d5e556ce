"""Evidence → class: what ranks, logs and Slurm really say, and what only looks like it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dscampaign.jobs.agent import agent
from dscampaign.jobs.agent.evidence import NodeOutcome, RankEnd
from dscampaign.jobs.agent.gpus import Gpu, GpuFacts
from dscampaign.jobs.agent.kernel_log import KernelLine
from dscampaign.jobs.shared.layout import payload_file
from dscampaign.orchestrator.executors.base import JobView
from dscampaign.orchestrator.failures.classify import classify
from dscampaign.orchestrator.failures.evidence import Ended
from dscampaign.orchestrator.failures.rules import USER_ACTIONS, UserRule
from dscampaign.orchestrator.failures.verdict import Verdict
from dscampaign.tests.support.policy_world import job, log_lines, outcome, rank_error

KILLED = RankEnd(0, None, None), RankEnd(1, None, None)
GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1024"
NCCL = "NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited or there was a network error, NCCL version 2.21"


def judge(*outcomes: NodeOutcome, state: JobView | str | None = "FAILED", **values: Any) -> Verdict:
    """The verdict on an attempt of one node that was to make 100 steps on GPUs."""
    view = job(state) if isinstance(state, str) else state
    defaults = {"nodes": max(1, len(outcomes)), "target_step": 100, "steps_decide": True, "on_cpu": False}
    return classify(Ended(view, outcomes, **{**defaults, **values}))


def raised(kind: str, message: str, **values: Any) -> NodeOutcome:
    """Rank 0 ended by this exception, rank 1 was ended by the launcher."""
    return outcome(rank_error(0, kind, message), RankEnd(1, None, None), **values)


# -- success and stop ------------------------------------------------------------------------------------------


def test_success_is_the_target_step_and_clean_exits() -> None:
    assert judge(outcome(), state="COMPLETED").kind == "completed"
    assert judge(outcome(), state=None).kind == "completed"
    assert judge(outcome(last_step=99), state="COMPLETED").kind == "crash"
    assert judge(outcome(last_step=None), state="COMPLETED").kind == "crash"


def test_completed_by_slurm_s_word_alone_is_no_success() -> None:
    assert judge(state="COMPLETED").kind == "crash"
    assert judge(outcome(), nodes=2, state="COMPLETED").kind == "crash"
    assert judge(outcome(launcher_exit=None, ended_by="rendezvous"), state="COMPLETED").kind != "completed"


def test_a_launcher_that_exits_0_after_a_signal_is_no_success() -> None:
    dead = outcome(RankEnd(0, None, None), RankEnd(1, 0, None), launcher_exit=0, last_step=40)
    verdict = judge(dead, state="COMPLETED")
    assert verdict.kind == "crash"
    assert "rank 0" in verdict.reason


def test_an_attempt_that_resumed_at_the_target_has_nothing_left_to_report() -> None:
    assert judge(outcome(start_step=100, last_step=None)).kind == "completed"


def test_what_becomes_of_the_interpreters_after_the_last_step_does_not_matter() -> None:
    assert judge(outcome(launcher_exit=250)).kind == "completed"


def test_a_script_of_one_s_own_decides_when_it_is_complete() -> None:
    own: dict[str, Any] = {"steps_decide": False}
    assert judge(outcome(last_step=None), target_step=None, **own).kind == "completed"
    early = judge(outcome(last_step=7), **own)
    assert (early.kind, early.reason) == ("completed", "the script ended at step 7 of 100")
    assert judge(outcome(last_step=100), **own).reason == ""
    assert judge(outcome(launcher_exit=1, last_step=7), **own).kind == "crash"


def test_an_epoch_that_the_script_counted_is_the_target() -> None:
    assert judge(outcome(last_step=37, target_step=37), target_step=37).kind == "completed"
    assert judge(outcome(last_step=37), target_step=None).kind == "crash"


@pytest.mark.parametrize("target", [100, None])
def test_an_orderly_stop_resumes_later(target: int | None) -> None:
    verdict = judge(outcome(last_step=40, ended_by="stop"), target_step=target, steps_decide=False)
    assert (verdict.kind, verdict.reason) == ("stopped", "stopped after a checkpoint at step 40")


def test_a_stop_that_came_at_the_end_is_a_success() -> None:
    assert judge(outcome(ended_by="stop")).kind == "completed"


@pytest.mark.parametrize("ended_by", ["stop", "", "teardown", "peer"])
def test_exit_85_means_stopped_also_where_the_launcher_ended_the_slower_ranks(ended_by: str) -> None:
    left = outcome(RankEnd(0, 85, None), RankEnd(1, None, None), launcher_exit=85, ended_by=ended_by, last_step=40)
    assert judge(left).kind == "stopped"


def test_an_error_while_stopping_is_not_an_orderly_stop() -> None:
    broken = outcome(RankEnd(0, 85, None), rank_error(1, "builtins.OSError", "boom"), ended_by="stop")
    assert judge(broken).kind == "crash"
    assert judge(raised("builtins.OSError", "boom", ended_by="stop")).kind == "crash"


# -- Slurm's word ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("PREEMPTED", "preempted"),
        ("NODE_FAIL", "node"),
        ("BOOT_FAIL", "node"),
        ("LAUNCH_FAILED", "node"),
        ("CANCELLED", "cancelled"),
        ("TIMEOUT", "time_limit"),
        ("DEADLINE", "time_limit"),
        ("OUT_OF_MEMORY", "host_oom"),
        ("FAILED", "crash"),
        ("COMPLETED", "crash"),
    ],
)
def test_a_job_without_an_outcome_is_what_slurm_says(state: str, kind: str) -> None:
    assert judge(state=state).kind == kind


def test_a_step_out_of_memory_counts_though_the_job_only_failed() -> None:
    assert judge(state=job("FAILED", step_out_of_memory=True)).kind == "host_oom"


def test_an_error_before_the_time_limit_is_the_cause_and_an_echo_is_not() -> None:
    assert judge(raised("builtins.TypeError", "no", ended_by="signal"), state="TIMEOUT").kind == "deterministic"
    torn = raised("torch.distributed.DistBackendError", NCCL, ended_by="signal", last_step=40)
    assert judge(torn, state="TIMEOUT").kind == "time_limit"
    worker = "DataLoader worker (pid 1234) is killed by signal: Terminated."
    assert judge(raised("builtins.RuntimeError", worker, last_step=40), state="TIMEOUT").kind == "time_limit"


def test_a_collective_that_hung_until_the_limit_is_a_hang() -> None:
    hung = outcome(*KILLED, lines=log_lines("[rank0]:[E] Watchdog caught collective operation timeout: WorkNCCL(Seq"))
    assert judge(hung, state="TIMEOUT").kind == "hang"


def test_an_error_just_before_the_end_of_a_job_at_its_limit_is_an_answer_to_slurm_s_signal() -> None:
    """Where its agent did not come to note the signal."""
    ended_s = outcome().ended_s

    def left(state: str, before_s: float) -> str:
        error = rank_error(0, "builtins.ValueError", "closed", ts=ended_s - before_s)
        return judge(outcome(error, KILLED[1], last_step=None), state=state).kind

    assert left("TIMEOUT", 5) == "time_limit"
    assert left("TIMEOUT", 300) == left("FAILED", 5) == "deterministic"


def test_a_collective_that_gave_up_before_the_limit_is_a_hang() -> None:
    gave_up = rank_error(0, "builtins.RuntimeError", "Rank 2 failed to pass monitoredBarrier in 600000 ms")
    late = outcome(gave_up, KILLED[1], ended_by="signal", ending_s=900.0, last_step=40)
    assert judge(late, state="TIMEOUT").kind == "hang"


def test_what_was_being_ended_did_not_die_by_itself() -> None:
    wait = rank_error(0, "torch.distributed.DistStoreError", "wait timeout after 300000ms, keys: /a")
    torn = outcome(RankEnd(2, None, None, gone_s=79.0), launcher_exit=247, ending_s=73.0, node_rank=1, last_step=None)
    assert judge(outcome(wait), torn).kind == "hang"
    killed = replace(torn, ranks=(RankEnd(2, None, None, gone_s=70.0),))
    assert judge(outcome(wait), killed).kind == "crash"


def test_preemption_beats_the_errors_that_it_causes() -> None:
    assert judge(raised("torch.distributed.DistBackendError", NCCL), state="PREEMPTED").kind == "preempted"


# -- what ranks write down -------------------------------------------------------------------------------------

RECORDS = [
    ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79 GiB", "oom", "cuda-oom"),
    ("torch.cuda.OutOfMemoryError", "CUDA out of memory. Tried to allocate 20 MiB", "oom", "cuda-oom"),
    ("builtins.RuntimeError", "CUDA error: out of memory\nCUDA kernel errors might be", "oom", "cuda-oom"),
    ("builtins.RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", "oom", "cublas-alloc"),
    ("builtins.RuntimeError", "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory",
     "host_oom", "cpu-alloc"),
    ("builtins.MemoryError", "", "host_oom", "memory-error"),
    ("builtins.MemoryError", "std::bad_alloc: std::bad_alloc", "host_oom", "cpu-alloc"),
    ("builtins.OSError", "[Errno 12] Cannot allocate memory", "host_oom", "memory-error"),
    ("builtins.AssertionError", "Check batch related parameters. train_batch_size is not equal to 16 != 2 * 4 * 1",
     "deterministic", "ds-batch"),
    ("pydantic_core.ValidationError", "1 validation error for X\nstage3_x\n  Extra inputs are not permitted",
     "deterministic", "ds-config"),
    ("pydantic_core._pydantic_core.ValidationError", "1 validation error for DeepSpeedZeroConfig\nstage\n  Input",
     "deterministic", "ds-config-value"),
    ("deepspeed.runtime.config.DeepSpeedConfigError", "Expected a string path", "deterministic", "ds-config"),
    ("builtins.ModuleNotFoundError", "No module named 'flash_attn'", "deterministic", "no-module"),
    ("builtins.RuntimeError", "Failed to import transformers.x because of the following error:\nNo module named 'y'",
     "deterministic", "no-module"),
    ("builtins.RuntimeError", "CUDA error: invalid device ordinal", "deterministic", "device-ordinal"),
    ("builtins.RuntimeError", "cannot load MPI library", "deterministic", "no-mpi"),
    ("builtins.SyntaxError", "invalid syntax (train.py, line 3)", "deterministic", "syntax"),
    ("builtins.TypeError", "f() got an unexpected keyword argument 'x'", "deterministic", "script-error"),
    ("json.decoder.JSONDecodeError", "Expecting value", "crash", ""),
    ("builtins.FileNotFoundError", "[Errno 2] No such file or directory: '/d'", "deterministic", "no-file"),
    ("builtins.OSError", "gpt9 is not a local folder and is not a valid model identifier", "deterministic",
     "no-hub-file"),
    ("builtins.FloatingPointError", "non-finite loss at step 12", "diverged", "non-finite"),
    ("builtins.OSError", "[Errno 28] No space left on device", "storage", "storage"),
    ("builtins.OSError", "[Errno 122] Disk quota exceeded", "storage", "storage"),
    ("builtins.OSError", "[Errno 116] Stale file handle", "storage", "storage"),
    ("builtins.RuntimeError", "CUDA error: uncorrectable ECC error encountered", "gpu", "gpu-ecc"),
    ("builtins.RuntimeError", "CUDA error: an illegal memory access was encountered", "gpu_fault", "gpu-fault"),
    ("builtins.KeyboardInterrupt", "", "crash", ""),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "expected", "rule"), RECORDS)
def test_what_ended_a_rank_before_its_first_step(kind: str, message: str, expected: str, rule: str) -> None:
    verdict = judge(raised(kind, message))
    assert (verdict.kind, verdict.rule) == (expected, rule)
    assert verdict.line is not None
    assert verdict.line.file == "ranks/rank-0.json"


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("builtins.ValueError", "bad batch", "crash"),
        ("builtins.KeyError", "'loss'", "crash"),
        ("builtins.FileNotFoundError", "[Errno 2] No such file or directory: '/scratch/x'", "crash"),
        ("torch.OutOfMemoryError", "CUDA out of memory.", "oom"),
        ("builtins.ModuleNotFoundError", "No module named 'late'", "deterministic"),
        ("builtins.FloatingPointError", "non-finite loss at step 12", "diverged"),
    ],
)
def test_after_many_steps_a_script_s_error_may_be_the_machine_s_fault(kind: str, message: str, expected: str) -> None:
    assert judge(raised(kind, message, last_step=5000)).kind == expected


def test_memory_of_the_host_is_the_device_s_where_the_cpu_trains() -> None:
    alloc = raised("builtins.RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried")
    assert judge(alloc, on_cpu=True).kind == "oom"
    assert judge(outcome(*KILLED, oom_kills=1), on_cpu=True).kind == "oom"


# -- the root and its echoes -----------------------------------------------------------------------------------


def test_the_earliest_error_that_is_no_echo_is_the_root() -> None:
    node0 = outcome(rank_error(0, "torch.distributed.DistBackendError", NCCL, ts=1.0))
    node1 = outcome(rank_error(2, "torch.OutOfMemoryError", "CUDA out of memory.", ts=2.0), node_rank=1)
    node2 = outcome(rank_error(4, "builtins.RuntimeError", "later", ts=3.0), node_rank=2)
    verdict = judge(node0, node1, node2)
    assert verdict.kind == "oom"
    assert verdict.line is not None
    assert verdict.line.file == "ranks/rank-2.json"


def test_a_rank_killed_for_memory_is_the_cause_of_what_the_others_say() -> None:
    echo = outcome(rank_error(0, "builtins.RuntimeError", GLOO), RankEnd(1, None, None), oom_kills=1)
    assert judge(echo).kind == "host_oom"
    echo = replace(echo, oom_kills=0)
    assert judge(echo, state="OUT_OF_MEMORY").kind == "host_oom"
    assert judge(echo, state=job("FAILED", step_out_of_memory=True)).kind == "host_oom"


def test_a_loader_that_was_killed_for_memory_is_no_crash() -> None:
    loader = raised("builtins.RuntimeError", "DataLoader worker (pid 12) is killed by signal: Killed.", oom_kills=1)
    assert judge(loader).kind == "host_oom"


def test_the_log_of_the_rank_that_died_says_more_than_the_echo_of_the_others() -> None:
    lines = log_lines("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB")
    assert (
        judge(outcome(rank_error(0, "builtins.RuntimeError", GLOO), RankEnd(1, None, None), lines=lines)).kind == "oom"
    )


def test_an_echo_alone_names_the_rank_that_left_no_word() -> None:
    verdict = judge(outcome(rank_error(0, "builtins.RuntimeError", GLOO), RankEnd(1, None, None), last_step=40))
    assert verdict.kind == "crash"
    assert "Connection closed by peer" in verdict.reason
    assert "rank 1 left no record of its end" in verdict.reason


def test_what_looks_like_a_mistake_is_none_once_the_experiment_has_trained() -> None:
    """A file that is missing where a run resumes is that node's trouble."""
    error = "builtins.FileNotFoundError", "No such file or directory: '/data/text'"
    assert judge(raised(*error)).kind == "deterministic"
    assert judge(raised(*error, start_step=5000)).kind == "crash"


@pytest.mark.parametrize(
    ("kind", "message"),
    [("builtins.OSError", "We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them"),
     ("huggingface_hub.errors.LocalEntryNotFoundError", "An error happened while trying to locate the file")],
)  # fmt: skip
def test_a_hub_that_is_away_is_tried_again_and_the_hint_is_kept(kind: str, message: str) -> None:
    verdict = judge(raised(kind, message))
    assert (verdict.kind, verdict.hint) == ("crash", "fetch it on the login node first")
    assert judge(raised("huggingface_hub.errors.OfflineModeIsEnabled", "Cannot reach")).kind == "deterministic"


def test_killed_ranks_are_named() -> None:
    verdict = judge(outcome(RankEnd(0, 0, None), RankEnd(1, None, None), launcher_exit=247))
    assert (verdict.kind, verdict.reason) == ("crash", "rank 1 was killed by SIGKILL (launcher exit 247)")


def test_a_node_that_waited_in_vain_is_the_machine_s_fault() -> None:
    lonely = outcome(*KILLED, launcher_exit=None, ended_by="rendezvous", host="n2", node_rank=1)
    verdict = judge(lonely, nodes=2)
    assert (verdict.kind, verdict.reason, verdict.host) == ("node", "n2 timed out waiting for the first node", "")


def test_a_working_folder_that_is_away_is_no_mistake_of_the_script() -> None:
    """The file system that it lies on is away on the node, as a home folder may be."""
    away = outcome(*KILLED, launcher_exit=None, ended_by="no_workdir", host="n2")
    verdict = judge(away)
    assert (verdict.kind, verdict.host) == ("node", "n2")
    assert verdict.reason == "n2 does not have the folder where the training starts"


# -- logs, where nobody left a record --------------------------------------------------------------------------

LOGS = [
    ("/env/bin/python: No module named deepspeed", "deterministic"),
    ("ModuleNotFoundError: No module named 'torch'", "deterministic"),
    ("[rank0]: ImportError: cannot import name 'x' from 'y'", "deterministic"),
    ("/env/bin/python: can't open file '/x/train.py': [Errno 2] No such file or directory", "deterministic"),
    ("train.py: error: unrecognized arguments: --frobnicate", "deterministic"),
    ("usage: train.py [-h] --depth DEPTH", "crash"),
    ("launcher: 1: exec: /nope/python: not found", "deterministic"),
    ("/bin/sh: 1: exec: /nope/python: not found", "deterministic"),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks", "host_oom"),
    ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.batch", "host_oom"),
    ("slurmstepd: error: Exceeded job memory limit", "host_oom"),
    ("[rank3]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE)", "hang"),
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus.", "gpu"),
    ("NVRM: Xid (PCI:0000:3b:00): 31, pid=12, Ch 00000008", "gpu_fault"),
]


@pytest.mark.parametrize(("text", "expected"), LOGS)
def test_a_line_of_a_log_where_no_rank_left_a_record(text: str, expected: str) -> None:
    assert judge(outcome(*KILLED, lines=log_lines("step 0", text))).kind == expected


ABORT = "python3: /x/deepcompile.h:191: void dc::swap(c10::ScalarType): Assertion `hasKey(buffer_, type)' failed."


def test_an_abort_is_explained_by_the_assertion_before_it() -> None:
    verdict = judge(outcome(*KILLED, launcher_exit=250, lines=log_lines(ABORT, "Fatal Python error: Aborted")))
    assert (verdict.kind, verdict.rule) == ("crash", "assertion")
    assert "Assertion `hasKey(buffer_, type)' failed" in verdict.reason
    assert verdict.line is not None


INNOCENT = [
    "[INFO] config: on_error=stop, error_file=errors.txt, skip_errors=true",
    "WARNING: No module named 'apex', falling back to torch",
    "flash_attn raised ImportError, using sdpa instead",
    "retry after ValueError in worker 3 (attempt 2)",
    "[2025-01-01] [INFO] [runner.py:630:main] cmd = /bin/python -u --note OutOfMemoryError",
    "[2025-01-01] process 12 spawned with command: ['python', 'No module named x']",
    "[launch.py:341] ['python', 'x', 'CUDA out of memory'] exits with return code = -9",
    "Exception ignored in: <function Pool.__del__ at 0x7f>",
]


@pytest.mark.parametrize("text", INNOCENT)
def test_a_line_that_only_sounds_like_an_error_stops_nothing(text: str) -> None:
    assert judge(outcome(*KILLED, lines=log_lines(text))).kind == "crash"


def test_a_rank_s_own_word_beats_any_log() -> None:
    lines = log_lines("ModuleNotFoundError: No module named 'optional'")
    assert judge(raised("builtins.RuntimeError", "boom", lines=lines)).kind == "crash"


def test_the_agents_log_explains_a_job_that_never_began() -> None:
    def explained(texts: Sequence[str]) -> str:
        return judge(agent_lines=log_lines(*texts)).kind

    assert explained(["Traceback (most recent call last):", "ValueError: x.json: written by another version"]) == (
        "deterministic"
    )
    assert explained(["bash: line 1: python3: command not found"]) == "crash"


@pytest.mark.parametrize(("code", "kind"), [("127:0", "deterministic"), ("126:0", "deterministic"), ("1:0", "crash")])
def test_a_shell_that_finds_no_command_says_so_by_its_exit_code(code: str, kind: str) -> None:
    said = log_lines("/var/spool/slurmd/job12/slurm_script: line 14: /u/env/bin/python: No such file or directory")
    assert judge(state=job("FAILED", exit_code=code), agent_lines=said).kind == kind
    assert judge(state=job("FAILED", exit_code=code), agent_lines=said, known_last_step=9).kind == "crash"
    assert judge(state=job("FAILED", exit_code=code)).kind == "crash"


def test_a_refusal_of_the_agent_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = tmp_path / "c" / "batches" / "t"
    batch.mkdir(parents=True)
    payload_file(batch, 0).write_text("{}")
    monkeypatch.setattr(os, "umask", lambda mask: mask)
    batch.chmod(0o777)
    assert agent.main([str(batch), "0"]) == agent.EXIT_NOT_MINE
    batch.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert agent.main([str(batch), "0"]) == agent.EXIT_NOT_MINE
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    for text in said:
        verdict = judge(agent_lines=log_lines(text, "srun: error: n1: task 0: Exited with exit code 75"))
        assert (verdict.kind, verdict.rule, verdict.reason) == ("deterministic", "not-trusted", text)
        assert "chmod go-w" in verdict.hint
    assert judge(outcome(*KILLED, lines=log_lines("not run: 3 of 7 evaluations"))).kind == "crash"


# -- answers to being ended ------------------------------------------------------------------------------------


def test_what_a_rank_says_after_it_was_told_to_end_is_no_cause() -> None:
    late = outcome(
        rank_error(0, "builtins.ValueError", "closed", ts=50.2), ended_by="signal", ending_s=50.0, last_step=9
    )
    assert judge(late, state="TIMEOUT").kind == "time_limit"
    assert judge(late, state="FAILED").kind == "crash"
    at_once = replace(late, ending_s=50.9)  # Slurm's signal reached the rank before the agent
    assert judge(at_once, state="TIMEOUT").kind == "time_limit"
    before = replace(late, ending_s=60.0, last_step=None)
    assert judge(before, state="TIMEOUT").kind == "deterministic"


def test_a_node_that_was_ended_because_of_another_says_nothing_of_its_own() -> None:
    ended = outcome(rank_error(0, "builtins.KeyError", "'x'", ts=31.0), ended_by="peer", ending_s=30.0)
    root = outcome(rank_error(2, "torch.OutOfMemoryError", "CUDA out of memory.", ts=20.0), node_rank=1, host="n2")
    assert judge(ended, root).kind == "oom"


def test_a_mistake_of_a_rank_that_another_had_left_alone_is_none() -> None:
    alone = outcome(rank_error(0, "builtins.ValueError", "7 of 8", ts=9.0), RankEnd(1, None, None, 12, gone_s=8.0))
    verdict = judge(alone)
    assert verdict.kind == "crash"
    assert "rank 1 had ended before, without a record" in verdict.reason
    torn_down = outcome(rank_error(0, "builtins.ValueError", "x", ts=9.0), RankEnd(1, None, None, 12, gone_s=9.8))
    assert judge(torn_down).kind == "deterministic"


# -- one node only ---------------------------------------------------------------------------------------------

MISSING = "builtins.FileNotFoundError", "[Errno 2] No such file or directory: '/local/data'"


def nodes(*errors: Sequence[RankEnd]) -> list[NodeOutcome]:
    """An outcome for each node, hosts n0, n1, ..."""
    return [outcome(*ranks, node_rank=n, host=f"n{n}") for n, ranks in enumerate(errors)]


def test_what_only_one_node_lacks_is_that_node_s_fault() -> None:
    silent = [RankEnd(0, None, None), RankEnd(1, None, None)]
    verdict = judge(*nodes(silent, [rank_error(2, *MISSING), rank_error(3, *MISSING)]))
    assert (verdict.kind, verdict.host, verdict.rule) == ("node", "n1", "no-file")
    everywhere = judge(*nodes([rank_error(0, *MISSING)], [rank_error(1, *MISSING, ts=10.5)]))
    assert everywhere.kind == "deterministic"


def test_what_one_node_lacks_is_its_fault_also_where_another_error_wraps_it() -> None:
    wrapped = rank_error(2, "mylib.LoadFailed", "the loader gave up")
    assert wrapped.error is not None
    error = {**wrapped.error, "causes": [": ".join(MISSING)]}
    verdict = judge(*nodes([RankEnd(0, None, None)], [replace(wrapped, error=error)]))
    assert (verdict.kind, verdict.host) == ("node", "n1")


def test_what_rank_0_does_for_all_is_not_its_node_s_fault() -> None:
    echo = rank_error(1, "builtins.RuntimeError", GLOO, ts=11)
    assert judge(*nodes([rank_error(0, *MISSING), echo], [RankEnd(2, None, None)])).kind == "deterministic"


def test_a_mistake_in_the_script_is_no_node_s_fault() -> None:
    silent = [RankEnd(0, None, None)]
    assert judge(*nodes(silent, [rank_error(1, "builtins.TypeError", "no")])).kind == "deterministic"


def test_an_environment_that_has_trained_before_is_not_the_user_s_mistake() -> None:
    lacking = raised("builtins.ModuleNotFoundError", "No module named 'torch'", start_step=40)
    assert (judge(lacking).kind, judge(lacking).host) == ("node", "n1")


# -- what was raised in place of the cause ---------------------------------------------------------------------

CHAIN = """\
Traceback (most recent call last):
  File "/u/train.py", line 9, in main
{cause}

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/u/train.py", line 12, in close
AttributeError: 'NoneType' object has no attribute 'close'
""".splitlines()


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "oom"),
        ("OSError: [Errno 28] No space left on device", "storage"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'latest'", "deterministic"),
    ],
)
def test_the_exception_behind_the_last_one_may_name_the_cause(cause: str, kind: str) -> None:
    last = rank_error(0, "builtins.AttributeError", "'NoneType' object has no attribute 'close'")
    assert last.error is not None
    error = {**last.error, "trace": [line.format(cause=cause) for line in CHAIN]}
    assert judge(outcome(replace(last, error=error))).kind == kind


# -- what the node says ----------------------------------------------------------------------------------------

XID = "NVRM: Xid (PCI:0000:3b:00): {}, pid=12, name=python"


@pytest.mark.parametrize(
    ("number", "kind"), [(48, "gpu"), (79, "gpu"), (119, "gpu"), (13, "gpu_fault"), (31, "gpu_fault"), (63, "crash")]
)
def test_the_kernel_s_word_where_no_rank_left_one(number: int, kind: str) -> None:
    dead = outcome(*KILLED, host="n7", kernel=(KernelLine(9.0, XID.format(number)),), launcher_exit=250)
    verdict = judge(dead)
    assert verdict.kind == kind
    if kind != "crash":
        assert verdict.host == "n7"
        assert verdict.line is not None
        assert verdict.line.file == "kernel"


def test_a_broken_gpu_explains_what_cuda_says_and_nothing_else() -> None:
    kernel = (KernelLine(9.0, XID.format(79)),)
    assert judge(raised("builtins.RuntimeError", "CUDA error: unknown error", kernel=kernel)).kind == "gpu"
    assert judge(raised("builtins.TypeError", "no", kernel=kernel)).kind == "deterministic"


@pytest.mark.parametrize(
    ("addresses", "kind"),
    [(["0000:3b:00"], "gpu"), (["0000:18:00"], "crash"), (["0000:18:00", "0000:3b:00"], "gpu"), ([""], "gpu"),
     (["0000:18:00", ""], "gpu"), (None, "gpu")],
)  # fmt: skip
def test_an_xid_of_a_neighbour_s_gpu_is_not_ours(addresses: list[str] | None, kind: str) -> None:
    before = None if addresses is None else tuple(Gpu("0", 0, 80, address) for address in addresses)
    facts = GpuFacts(len(before or ()), before, before)
    for address in ("PCI:0000:3B:00", "PCI:0000:3b:00 GPU-I:01", "PCI:00000000:3b:00"):
        kernel = (KernelLine(9.0, f"NVRM: Xid ({address}): 79, pid=12, name=python"),)
        assert judge(outcome(*KILLED, kernel=kernel, gpus=facts)).kind == kind


def test_fewer_gpus_than_were_asked_of_slurm() -> None:
    seven = GpuFacts(8, tuple(Gpu(str(n), 0, 80) for n in range(7)), None)
    ordinal = raised("builtins.RuntimeError", "CUDA error: invalid device ordinal", gpus=seven, host="n3")
    verdict = judge(ordinal)
    assert (verdict.kind, verdict.reason, verdict.host) == ("gpu", "n3 shows 7 GPUs of 8", "n3")
    nobody_promised = replace(ordinal, job_id="local-n3-77")
    assert judge(nobody_promised, state="GONE").kind == "deterministic"


@pytest.mark.parametrize(("pid", "expected"), [(4001, "host_oom"), (77, "crash")])
def test_whom_the_kernel_killed(pid: int, expected: str) -> None:
    kernel = (KernelLine(9.0, f"Memory cgroup out of memory: Killed process {pid} (python)"),)
    dead = outcome(RankEnd(0, None, None, 4000), RankEnd(1, None, None, 4001), launcher_exit=247, kernel=kernel)
    assert judge(dead).kind == expected


@pytest.mark.parametrize(
    ("code", "word", "kind"),
    [(247, "SIGKILL", "crash"), (250, "SIGABRT", "crash"), (241, "SIGTERM", "crash"),
     (245, "SIGSEGV", "gpu_fault"), (249, "SIGBUS", "gpu_fault")],
)  # fmt: skip
def test_the_launcher_s_exit_tells_the_signal(code: int, word: str, kind: str) -> None:
    verdict = judge(outcome(RankEnd(0, 0, None), RankEnd(3, None, None), launcher_exit=code))
    assert verdict.kind == kind
    assert verdict.reason.startswith(f"rank 3 was killed by {word}")


def test_a_launcher_that_was_killed_itself() -> None:
    verdict = judge(outcome(RankEnd(0, 0, None), RankEnd(3, None, None), launcher_exit=-9))
    assert (verdict.kind, verdict.reason) == ("crash", "the launcher on n1 was killed by SIGKILL")
    ended_by_us = outcome(*KILLED, launcher_exit=-9, ended_by="teardown")
    assert "SIGKILL" not in judge(ended_by_us).reason


def test_of_several_that_left_no_word_none_is_named_alone() -> None:
    assert judge(outcome(*KILLED, launcher_exit=247)).reason.startswith("one of ranks 0, 1 was killed by SIGKILL")
    first = RankEnd(0, None, None, gone_s=9.5), RankEnd(1, None, None, gone_s=9.0)
    assert judge(outcome(*first, launcher_exit=247)).reason.startswith("rank 1 was killed by SIGKILL")


def test_a_killed_agent_leaves_slurm_s_word_as_the_proof() -> None:
    verdict = judge(state=job("FAILED", exit_code="0:9"))
    assert verdict.kind == "crash"
    assert verdict.line is not None
    assert (verdict.line.file, verdict.line.text) == ("slurm", "FAILED 0:9")


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [("0:9", "JobLaunchFailure", "host_oom"), ("1:0", "JobLaunchFailure", "node"), ("0:53", "", "node")],
)
def test_a_job_that_slurm_could_not_run(code: str, reason: str, kind: str) -> None:
    assert judge(state=job("FAILED", exit_code=code, reason=reason)).kind == kind


# -- the user's own rules --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "kind"), [("stop", "deterministic"), ("retry", "crash"), ("exclude_node", "gpu"), ("smaller", "oom")]
)
def test_a_rule_of_the_user_s_own_comes_first(action: str, kind: str) -> None:
    own = UserRule(re.compile("licen[cs]e server"), action, "ask the admins")
    lines = log_lines("step 1", "the licence server said no")
    verdict = judge(raised("builtins.TypeError", "no", lines=lines, host="n4"), user_rules=[own])
    assert (verdict.kind, verdict.rule, verdict.hint) == (kind, "user: licen[cs]e server", "ask the admins")
    assert verdict.host == "n4"
    assert set(USER_ACTIONS) == {"stop", "retry", "exclude_node", "smaller"}


def test_a_rule_of_the_user_s_own_does_not_overrule_slurm_or_success() -> None:
    own = [UserRule(re.compile("."), "stop")]
    assert judge(outcome(), user_rules=own).kind == "completed"
    assert judge(outcome(*KILLED, lines=log_lines("x")), state="PREEMPTED", user_rules=own).kind == "preempted"
    assert judge(outcome(*KILLED, lines=log_lines("x")), state="TIMEOUT", user_rules=own).kind == "deterministic"


def test_a_rule_of_the_user_s_own_does_not_match_the_configuration_that_holds_it() -> None:
    own = [UserRule(re.compile("licence server"), "stop")]
    echoed = log_lines("runner.py: cmd = python train.py --note 'licence server'", '  "match": "licence server",')
    assert judge(outcome(*KILLED, lines=echoed), user_rules=own).kind == "crash"


# -- words -----------------------------------------------------------------------------------------------------


def test_a_reason_is_one_line_that_a_person_understands() -> None:
    message = (
        "2 validation errors for DeepSpeedZeroConfig\nno_such_key\n  Extra inputs are not permitted "
        "[type=extra_forbidden, input_value=True, input_type=bool]\n    For further information visit https://x\nother\n"
    )
    reason = judge(raised("pydantic_core._pydantic_core.ValidationError", message)).reason
    assert reason.endswith("DeepSpeedZeroConfig no_such_key Extra inputs are not permitted")
    assert len(judge(raised("builtins.RuntimeError", "x" * 5000)).reason) < 300
    assert judge(state=job("GONE", ended_s=None)).reason == "ended without a record of how"
