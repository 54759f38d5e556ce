"""What an exception's class, errno, place and time say, in words that no rule has seen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dscampaign.jobs.agent.evidence import RankEnd
from dscampaign.orchestrator.failures import errnos
from dscampaign.orchestrator.failures.raised import Frame, Place, of_trace, places, recorded, said
from dscampaign.tests.support.policy_world import log_lines, outcome
from dscampaign.tests.support.verdicts import SITE, USER, judge, judge_error, meaning

# -- the exception ---------------------------------------------------------------------------------------------


def test_frames_are_read_from_a_traceback_of_the_last_exception() -> None:
    trace = """\
Traceback (most recent call last):
  File "/u/a.py", line 3, in f
    g(x)
KeyError: 1

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/u/a.py", line 5, in main
    h(x,
    ~^^^
  File "/u/b.py", line 7, in h
ValueError: 2
""".splitlines()
    assert of_trace(trace) == (Frame("/u/a.py", 5, "main", "h(x,"), Frame("/u/b.py", 7, "h"))


def test_the_place_tells_one_error_from_another() -> None:
    here = recorded({"type": "builtins.RuntimeError", "message": "a", "frames": [["/u/a.py", 3, "f", ""]]})
    there = recorded({"type": "builtins.RuntimeError", "message": "a", "frames": [["/u/a.py", 4, "f", ""]]})
    assert here.place == "builtins.RuntimeError at a.py:3 f" != there.place
    assert said("RuntimeError: a").place == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("bases", "errno", "frames", "chain"), JSON)))
def test_a_record_of_any_shape_is_read(record: dict[str, Any]) -> None:
    error = {"type": "builtins.RuntimeError", "message": "boom", "trace": [], "ts": 1.0, **record}
    assert judge(outcome(RankEnd(0, 1, error)), state=None).kind


# -- errno -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", sorted(n for n in errnos.FAULTS if errnos.FAULTS[n] is errnos.Fault.STORAGE))
def test_an_errno_of_storage_is_no_mistake_of_the_script(number: int) -> None:
    said_so = judge_error("builtins.OSError", f"[Errno {number}] {errnos.WORDS[number]}: '/scratch/a/b'")
    assert (said_so.kind, said_so.rule) == ("storage", "storage")
    record = {"type": "h5.Error", "message": "cannot write /scratch/a", "errno": number, "ts": 1.0}
    assert judge(outcome(RankEnd(0, 1, record)), state=None).kind == "storage"


# -- place -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "function", "place"),
    [
        ("/u/train.py", "main", Place.USER),
        (f"{SITE}/torch/distributed/distributed_c10d.py", "all_reduce", Place.COLLECTIVE),
        (f"{SITE}/deepspeed/comm/torch.py", "broadcast", Place.COLLECTIVE),
        (f"{SITE}/torch/distributed/distributed_c10d.py", "destroy_process_group", Place.TEARDOWN),
        (f"{SITE}/deepspeed/runtime/engine.py", "save_checkpoint", Place.SAVING),
        (f"{SITE}/deepspeed/runtime/engine.py", "load_checkpoint", Place.LOADING),
        (f"{SITE}/yaml/__init__.py", "load", Place.DATA),
        (f"{SITE}/torch/utils/data/_utils/fetch.py", "fetch", Place.DATA),
        (f"{SITE}/mylib/core.py", "run", Place.LIBRARY),
    ],
)
def test_a_frame_has_an_owner(file: str, function: str, place: Place) -> None:
    assert places([Frame("/u/train.py", 1, "main"), Frame(file, 2, function)])[0] is place


# -- kinds -----------------------------------------------------------------------------------------------------

OPERATOR = (f"{SITE}/torch/nn/functional.py", 2546, "layer_norm", "")
TRACKER = (f"{SITE}/wandb/sdk/wandb_run.py", 1800, "log", "")
CHECK = (f"{SITE}/mylib/core.py", 3, "check", "raise Odd('no')")

EARLY: list[tuple[str, str, tuple[tuple[str, int, str, str], ...], str]] = [
    ("builtins.RuntimeError", "an odd complaint", (USER, OPERATOR), "deterministic"),
    ("builtins.RuntimeError", "the frob is out", (USER,), "deterministic"),
    ("json.decoder.JSONDecodeError", "Expecting value: line 1 column 1 (char 0)", (USER,), "deterministic"),
    ("builtins.ValueError", "odd", (USER,), "deterministic"),
    ("builtins.ValueError", "odd", (USER, TRACKER), "deterministic"),
    ("mylib.Odd", "no", (USER, CHECK), "deterministic"),
    ("builtins.AssertionError", "", (("/u/t.py", 3, "step", "assert torch.isfinite(loss)"),), "diverged"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "frames", "expected"), EARLY)
def test_the_frames_of_an_error_before_the_first_step(kind: str, message: str, frames: Any, expected: str) -> None:
    verdict = judge_error(kind, message, *frames)
    assert meaning(verdict) == expected, verdict


@pytest.mark.parametrize(
    ("kind", "message", "frames"),
    [
        ("builtins.OSError", "[Errno 99] Cannot assign requested address", (USER,)),
        ("builtins.RuntimeError", "Max retries exceeded", (USER,)),
        ("filelock.Timeout", "The file lock '/h/x.lock' could not be acquired.", (USER,)),
    ],
)
def test_the_network_shows_by_errno_or_words(kind: str, message: str, frames: Any) -> None:
    verdict = judge_error(kind, message, *frames)
    assert (verdict.kind, verdict.rule) == ("crash", "passing")


def test_where_a_run_resumes_the_environment_is_the_node_s() -> None:
    for message in ("libcudart.so.12: cannot open shared object file", "Ninja is required to load C++ extensions"):
        assert meaning(judge_error("builtins.ImportError", message)) == "deterministic"
        assert judge_error("builtins.ImportError", message, start_step=300).kind == "node"
        assert judge_error("builtins.ImportError", message, last_step=300).kind == "crash"


def test_a_file_that_cannot_be_read_is_a_checkpoint_once_there_can_be_one() -> None:
    broken = "builtins.RuntimeError", "PytorchStreamReader failed reading zip archive"
    assert meaning(judge_error(*broken)) == "deterministic"
    assert judge_error(*broken, start_step=300).kind == "checkpoint"
    resume = "/u/train.py", 9, "main", "state = resume(path)"
    assert judge_error("builtins.KeyError", "'optimizer'", resume, start_step=300).kind == "checkpoint"


def test_an_exception_that_only_wraps_another_is_what_it_wraps() -> None:
    def wrapping(kind: str, message: str) -> str:
        chain = [{"type": kind, "message": message}]
        record = {"type": "mylib.JobFailed", "message": "the job failed", "ts": 1.0, "chain": chain}
        return meaning(judge(outcome(RankEnd(0, 1, record)), state=None))

    assert wrapping("builtins.KeyError", "'x'") == "deterministic"
    assert wrapping("torch.OutOfMemoryError", "CUDA out of memory.") == "oom"
    assert wrapping("builtins.ConnectionError", "odd") == "crash"


def test_the_log_of_a_rank_without_a_record_has_places_too() -> None:
    lines = log_lines(
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "/u/train.py", line 9, in main',
        f'[rank0]:   File "{SITE}/torch/nn/functional.py", line 9, in layer_norm',
        "[rank0]: RuntimeError: an odd complaint",
    )
    dead = outcome(RankEnd(0, 1, None), RankEnd(1, None, None), last_step=None, lines=lines)
    verdict = judge(dead)
    assert (verdict.kind, verdict.suspect, verdict.rule) == ("crash", "deterministic", "error")


# -- the end ---------------------------------------------------------------------------------------------------


def test_what_fails_after_the_target_step_fails_nothing() -> None:
    destroy = f"{SITE}/torch/distributed/distributed_c10d.py", 2, "destroy_process_group", ""
    assert judge_error("builtins.RuntimeError", "odd", USER, destroy, last_step=1000).kind == "completed"
    assert judge_error("builtins.RuntimeError", "odd", USER, destroy, last_step=999).kind == "crash"
    save = f"{SITE}/deepspeed/runtime/engine.py", 2, "save_checkpoint", ""
    assert judge_error("builtins.OSError", "[Errno 28] No space left", USER, save, last_step=1000).kind == "storage"
    assert judge_error("builtins.KeyError", "'eval/loss'", USER, last_step=1000).kind == "crash"
