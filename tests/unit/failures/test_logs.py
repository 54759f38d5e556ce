"""Logs, where nobody left a record, the user's own rules, and the words of a verdict."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from dscampaign.jobs.agent import agent
from dscampaign.jobs.agent.evidence import REFUSED
from dscampaign.jobs.shared.layout import payloads_file
from dscampaign.orchestrator.failures.evidence import UserRule
from dscampaign.orchestrator.failures.rules import USER_ACTIONS
from dscampaign.tests.support.policy_world import job, log_lines, outcome
from dscampaign.tests.support.verdicts import KILLED, judge, meaning, raised

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


OF_ALL_RANKS = """\
[rank3]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank3]:   File "/u/t.py", line 3, in f
[rank0]:   File "/u/t.py", line 9, in main
[rank3]:     x = batch["labels"]
step=0 loss=11.0
[rank3]: KeyError: 'labels'
[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited
[rank0]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
""".splitlines()


def test_a_launcher_only_reports_that_its_process_failed() -> None:
    head, at = "Traceback (most recent call last):", '  File "/u/t.py", line 3, in f'
    launcher = "subprocess.CalledProcessError: Command '['/env/bin/python', 't.py']' returned non-zero exit status 1."
    verdict = judge(outcome(*KILLED, lines=log_lines(head, at, "RuntimeError: no data", head, at, launcher)))
    assert verdict.reason == "RuntimeError: no data"


def test_a_log_of_all_ranks_is_read_rank_by_rank() -> None:
    """The hook of torch marks lines of what nobody caught: that rank 0 goes on after rank 3 failed acquits nobody."""
    verdict = judge(outcome(*KILLED, lines=log_lines(*OF_ALL_RANKS)))
    assert (meaning(verdict), verdict.reason) == ("deterministic", "KeyError: 'labels'")


def test_further_lines_of_a_message_belong_to_it() -> None:
    lines = (
        "[rank1]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, invalid usage",
        "[rank1]: Last error:",
        "[rank1]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000",
    )
    assert judge(outcome(*KILLED, lines=log_lines(*lines))).rule == "device-ordinal"


WATCHDOG = "[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE)"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("[rank6]: KeyError: 'attention_msk'", "deterministic"),
        ("[rank6]: OSError: [Errno 122] Disk quota exceeded", "storage"),
        ("[rank6]: KeyboardInterrupt", "hang"),
    ],
)
def test_the_abort_of_a_rank_that_waited_is_not_the_cause(said: str, expected: str) -> None:
    assert meaning(judge(outcome(*KILLED, launcher_exit=250, lines=log_lines(said, WATCHDOG)))) == expected


def test_a_signal_that_nobody_explains_is_what_ended_it() -> None:
    assert judge(outcome(*KILLED, launcher_exit=250, lines=log_lines("[rank6]: KeyError: 'a'"))).kind == "crash"


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("srun: error: Node failure on n7", "n7"),
        ("srun: error: Task launch for StepId=12.0 failed on node n7: Job prolog failed", "n7"),
        ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 4/8 clients joined.", ""),
    ],
)
def test_who_tells_of_another_node_is_not_blamed(text: str, host: str) -> None:
    verdict = judge(outcome(*KILLED, lines=log_lines(text)))
    assert (verdict.kind, verdict.host) == ("node", host)


def test_who_lacks_an_extension_waited_for_one_who_could_not_build_it() -> None:
    lines = (
        "[rank1]: ImportError: /h/torch_extensions/cpu_adam.so: cannot open shared object file: No such file",
        "[rank0]: RuntimeError: Error building extension 'cpu_adam'",
    )
    assert judge(outcome(*KILLED, lines=log_lines(*lines))).rule == "demand"
    assert judge(outcome(*KILLED, lines=log_lines(*lines[:1]))).rule == "extension-race"


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
        return meaning(judge(agent_lines=log_lines(*texts)))

    assert explained(["Traceback (most recent call last):", "ValueError: x.json: written by another version"]) == (
        "deterministic"
    )
    assert explained(["bash: line 1: python3: command not found"]) == "crash"


@pytest.mark.parametrize(("code", "kind"), [("127:0", "deterministic"), ("126:0", "deterministic"), ("1:0", "crash")])
def test_a_shell_that_finds_no_command_says_so_by_its_exit_code(code: str, kind: str) -> None:
    said = log_lines("/var/spool/slurmd/job12/slurm_script: line 14: /u/env/bin/python: No such file or directory")
    assert meaning(judge(state=job("FAILED", exit_code=code), agent_lines=said)) == kind
    assert judge(state=job("FAILED", exit_code=code), agent_lines=said, known_last_step=9).kind == "crash"
    assert judge(state=job("FAILED", exit_code=code)).kind == "crash"


def test_a_refusal_of_the_agent_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = tmp_path / "c" / "batches" / "t"
    batch.mkdir(parents=True)
    payloads_file(batch).write_text("{}")
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
        assert (verdict.kind, verdict.rule, verdict.reason) == (
            "deterministic",
            "not-trusted",
            text.removeprefix(f"{REFUSED} "),
        )
        assert "chmod go-w" in verdict.hint
        of_a_rank = judge(outcome(*KILLED, lines=log_lines(text)), agent_lines=log_lines(text))
        of_an_old_agent = judge(agent_lines=log_lines(text.removeprefix(f"{REFUSED} ")))
        assert (of_a_rank.kind, of_an_old_agent.kind) == ("crash", "crash")
    assert judge(outcome(*KILLED, lines=log_lines("not run: 3 of 7 evaluations"))).kind == "crash"


def test_prepared_data_of_a_stranger_s_are_not_tried_again() -> None:
    verdict = judge(raised("dscampaign.files.ownership.Distrusted", "/scratch/data belongs to user mallory"))
    assert (verdict.kind, verdict.rule) == ("deterministic", "foreign-data")


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
    assert judge(state=job("GONE", ended_s=None)).reason == "ended without a record"
