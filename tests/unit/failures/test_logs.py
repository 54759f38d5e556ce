"""Logs, where nobody left a record, the user's own rules, and the words of a verdict."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from dscampaign.jobs.agent import agent
from dscampaign.jobs.agent.evidence import EXIT_NOT_MINE, REFUSED
from dscampaign.jobs.shared.layout import payloads_file
from dscampaign.orchestrator.failures.evidence import UserRule
from dscampaign.orchestrator.failures.rules import USER_ACTIONS
from dscampaign.tests.support.policy_world import job, log_lines, outcome
from dscampaign.tests.support.verdicts import KILLED, judge, meaning, raised

# -- logs, where nobody left a record --------------------------------------------------------------------------


def test_the_agents_log_explains_a_job_that_never_began() -> None:
    texts = "Traceback (most recent call last):", "ValueError: x.json: written by another version"
    verdict = judge(agent_lines=log_lines(*texts))
    assert (verdict.kind, verdict.reason, verdict.place) == ("crash", texts[1], "")


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
    assert agent.main([str(batch), "0"]) == EXIT_NOT_MINE
    batch.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert agent.main([str(batch), "0"]) == EXIT_NOT_MINE
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
