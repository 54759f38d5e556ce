"""What the nodes themselves show: memory, GPUs, the kernel's log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dscampaign.jobs.agent.evidence import RankEnd
from dscampaign.jobs.agent.gpus import Gpu, GpuFacts
from dscampaign.jobs.agent.node_facts import KernelLine
from dscampaign.orchestrator.failures.evidence import Ended, rank_exits
from dscampaign.tests.support.policy_world import job, outcome
from dscampaign.tests.support.verdicts import KILLED, judge, meaning, raised

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
    assert meaning(judge(raised("builtins.TypeError", "no", kernel=kernel))) == "deterministic"


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
