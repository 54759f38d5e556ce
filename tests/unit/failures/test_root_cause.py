"""What ranks write down: the root, its echoes, and what was raised in place of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dscampaign.jobs.agent.evidence import NodeOutcome, RankEnd
from dscampaign.orchestrator.failures.evidence import Ended
from dscampaign.tests.support.policy_world import job, log_lines, outcome, rank_error
from dscampaign.tests.support.verdicts import GLOO, KILLED, NCCL, SITE, judge, meaning, raised

# -- what ranks write down -------------------------------------------------------------------------------------

RECORDS = [
    ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79 GiB", "oom", "cuda-oom"),
    ("torch.cuda.OutOfMemoryError", "CUDA out of memory. Tried to allocate 20 MiB", "oom", "cuda-oom"),
    ("builtins.RuntimeError", "CUDA error: out of memory\nCUDA kernel errors might be", "oom", "cuda-oom"),
    ("builtins.RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", "oom", "cublas-alloc"),
    ("builtins.RuntimeError", "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory",
     "host_oom", "memory-error"),
    ("builtins.MemoryError", "", "host_oom", "memory-error"),
    ("builtins.MemoryError", "std::bad_alloc: std::bad_alloc", "host_oom", "memory-error"),
    ("builtins.OSError", "[Errno 12] Cannot allocate memory", "host_oom", "memory-error"),
    ("pydantic_core.ValidationError", "1 validation error for X\nstage3_x\n  Extra inputs are not permitted",
     "deterministic", "ds-config"),
    ("pydantic_core._pydantic_core.ValidationError", "1 validation error for DeepSpeedZeroConfig\nstage\n  Input",
     "deterministic", "ds-config"),
    ("deepspeed.runtime.config.DeepSpeedConfigError", "Expected a string path", "deterministic", "ds-config"),
    ("builtins.ModuleNotFoundError", "No module named 'flash_attn'", "deterministic", "no-module"),
    ("builtins.RuntimeError", "Failed to import transformers.x because of the following error:\nNo module named 'y'",
     "deterministic", "no-module"),
    ("builtins.RuntimeError", "CUDA error: invalid device ordinal", "deterministic", "device-ordinal"),
    ("builtins.SyntaxError", "invalid syntax (train.py, line 3)", "deterministic", "script-error"),
    ("builtins.TypeError", "f() got an unexpected keyword argument 'x'", "deterministic", "script-error"),
    ("json.decoder.JSONDecodeError", "Expecting value", "crash", "error"),
    ("builtins.FileNotFoundError", "[Errno 2] No such file or directory: '/d'", "crash", "no-file"),
    ("builtins.OSError", "gpt9 is not a local folder and is not a valid model identifier", "crash", "no-hub-file"),
    ("builtins.FloatingPointError", "non-finite loss at step 12", "diverged", "loss-not-finite"),
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


def test_the_log_of_the_rank_that_died_says_more_than_the_echo_of_the_others() -> None:
    lines = log_lines("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB")
    assert (
        judge(outcome(rank_error(0, "builtins.RuntimeError", GLOO), RankEnd(1, None, None), lines=lines)).kind == "oom"
    )


def test_what_looks_like_a_mistake_is_none_once_the_experiment_has_trained() -> None:
    """A file that is missing where a run resumes is that node's trouble."""
    error = "builtins.FileNotFoundError", "No such file or directory: '/data/text'"
    assert meaning(judge(raised(*error))) == "deterministic"
    assert judge(raised(*error, start_step=5000)).kind == "crash"


def test_a_working_folder_that_is_away_is_no_mistake_of_the_script() -> None:
    """The file system that it lies on is away on the node, as a home folder may be."""
    away = outcome(*KILLED, launcher_exit=None, ended_by="no_workdir", host="n2")
    verdict = judge(away)
    assert (verdict.kind, verdict.host) == ("node", "n2")
    assert verdict.reason == "n2 does not have the folder where the training starts"


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
    assert meaning(everywhere) == "deterministic"


def test_what_rank_0_does_for_all_is_not_its_node_s_fault() -> None:
    echo = rank_error(1, "builtins.RuntimeError", GLOO, ts=11)
    assert meaning(judge(*nodes([rank_error(0, *MISSING), echo], [RankEnd(2, None, None)]))) == "deterministic"


@pytest.mark.parametrize(
    ("kind", "message"), [("ValueError", "no"), ("TypeError", "f() got multiple values for argument")]
)
def test_what_only_one_node_shows_moves_to_another_whatever_it_is(kind: str, message: str) -> None:
    """An older library, a variable of its profile: a program that all nodes run alike fails on all of them."""
    verdict = judge(*nodes([RankEnd(0, None, None)], [rank_error(1, f"builtins.{kind}", message)]))
    assert (verdict.kind, verdict.host, bool(verdict.place)) == ("node", "n1", True)


# -- another try -----------------------------------------------------------------------------------------------

READER = f"{SITE}/pyarrow/parquet/core.py", 3, "read_table", ""
OWN = "/u/model.py", 3, "build", "raise ValueError(text)"


def failed(kind: str, message: str, frame: tuple[str, int, str, str], *ranks: int) -> NodeOutcome:
    """These of four ranks ended by the exception, the launcher ended the others."""
    record = {"type": kind, "message": message, "ts": 10.0, "frames": [list(frame)]}
    ends = (RankEnd(r, 1, record, 40 + r) if r in ranks else RankEnd(r, None, None, 40 + r) for r in range(4))
    return outcome(*ends, last_step=None)


@pytest.mark.parametrize(
    ("kind", "message", "frame", "expected"),
    [
        ("builtins.ValueError", "heads must divide", OWN, "crash"),
        ("builtins.KeyError", "'oom_retries'", OWN, "crash"),
        ("builtins.FileNotFoundError", "[Errno 2] No such file: '/d/x.txt'", OWN, "crash"),
        ("builtins.ValueError", "size is 0", READER, "crash"),
        ("mylib.NoSeats", "40 of 40", OWN, "crash"),
        ("builtins.NameError", "name 'x' is not defined", OWN, "deterministic"),
        ("builtins.SyntaxError", "invalid syntax (m.py, line 3)", OWN, "deterministic"),
        ("builtins.ImportError", "cannot import name 'a' from 'm' (/u/m.py)", OWN, "deterministic"),
        ("builtins.ImportError", "cannot import name 'a' from partially initialized module 'm'", OWN, "crash"),
    ],
)
def test_a_mistake_that_is_not_certain_gets_another_try(
    kind: str, message: str, frame: tuple[str, int, str, str], expected: str
) -> None:
    for ranks in ((2,), (0, 1, 2, 3)):
        verdict = judge(failed(kind, message, frame, *ranks))
        assert verdict.kind == expected
        assert meaning(verdict) == "deterministic"
        assert bool(verdict.place) == (verdict.kind == "crash")


@pytest.mark.parametrize("message", ["the server is unavailable", "[Errno 24] Too many open files"])
def test_a_state_that_may_pass_is_no_mistake_however_often_it_recurs(message: str) -> None:
    verdict = judge(failed("builtins.RuntimeError", message, OWN, 0, 1, 2, 3))
    assert (verdict.kind, verdict.rule, verdict.place) == ("crash", "passing", "")


@pytest.mark.parametrize("begun", [True, False])
def test_what_ends_before_a_rank_has_begun_tells_so(begun: bool) -> None:
    ended = Ended(job("FAILED"), [outcome(RankEnd(0, None, None, 40 if begun else None))], 1, 100, True, False)
    assert ended.begun is begun


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
    assert meaning(judge(outcome(replace(last, error=error)))) == kind
