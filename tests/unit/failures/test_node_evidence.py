"""What the nodes themselves show: memory, GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dscampaign.jobs.agent.evidence import RankEnd
from dscampaign.jobs.agent.gpus import Gpu, GpuFacts
from dscampaign.orchestrator.failures.evidence import Ended, rank_exits
from dscampaign.tests.support.policy_world import job, outcome
from dscampaign.tests.support.verdicts import judge, raised


def test_fewer_gpus_than_were_asked_of_slurm() -> None:
    seven = GpuFacts(8, tuple(Gpu(str(n), 0, 80) for n in range(7)), None)
    ordinal = raised("builtins.RuntimeError", "CUDA error: invalid device ordinal", gpus=seven, host="n3")
    verdict = judge(ordinal)
    assert (verdict.kind, verdict.reason, verdict.host) == ("gpu", "n3 shows 7 GPUs of 8", "n3")
    nobody_promised = replace(ordinal, job_id="local-n3-77")
    assert judge(nobody_promised, state="GONE").kind == "deterministic"


@pytest.mark.parametrize(
    ("code", "word", "kind"),
    [(247, "SIGKILL", "crash"), (250, "SIGABRT", "crash"), (241, "SIGTERM", "crash"),
     (245, "SIGSEGV", "gpu_fault"), (249, "SIGBUS", "gpu_fault")],
)  # fmt: skip
def test_the_launcher_s_exit_tells_the_signal(code: int, word: str, kind: str) -> None:
    left = outcome(RankEnd(0, 0, None), RankEnd(3, None, None), launcher_exit=code)
    verdict = judge(left)
    assert (verdict.kind, verdict.reason) == (kind, f"rank 3 was killed by {word}")
    assert rank_exits(Ended(None, [left], 1, 100, steps_decide=True, on_cpu=False)) == {0: 0, 3: code - 256}


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
