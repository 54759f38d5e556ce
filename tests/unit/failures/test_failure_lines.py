"""Which lines of a log may decide, and what is only an echo."""

from __future__ import annotations

import pytest

from dscampaign.jobs.agent.evidence import LogLine
from dscampaign.orchestrator.failures.clues import bare, clues, is_cascade


def left(*texts: str, file: str = "t_rank0.log") -> list[str]:
    """What is left of these lines of one log."""
    return [clue.text for clue in clues([LogLine(file, n, text) for n, text in enumerate(texts, 1)])]


ERROR = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.mark.parametrize(
    "decorated",
    [
        ERROR,
        f"[default3]:{ERROR}",
        f"n1: {ERROR}",
        f"2026-11-21 03:00:00,123 ERROR train.py:88 {ERROR}",
        f"ERROR:__main__:{ERROR}",
    ],
)
def test_what_loggers_put_before_an_error_is_taken_off(decorated: str) -> None:
    assert bare(decorated) == ERROR
    assert left(decorated) == [ERROR]


def test_an_error_after_which_training_went_on_is_none() -> None:
    assert left(ERROR, "step 12 loss 2.5") == []
    assert left("step 12 loss 2.5", ERROR) == [ERROR]
    assert ERROR in left(ERROR, "  3%|▎  | 3/100 [00:04<02:21,  1.46s/it]")  # a bar is closed as the program ends
    assert ERROR in left(ERROR, "wandb: train/loss 2.5", "error at step 12", "step 13: loss is nan")


@pytest.mark.parametrize(
    "text",
    [
        f"    {ERROR}",
        f"# {ERROR}",
        f'    "note": "{ERROR}",',
        f"config: {{'note': '{ERROR}'}}",
        f"[2026-11-21 03:00:00,123] [WARNING] [engine.py:12:step] {ERROR}",
        f"{ERROR}, retrying with half of it",
    ],
)
def test_a_line_that_only_quotes_or_warns_of_an_error_is_none(text: str) -> None:
    assert left(text) == []


def test_an_exception_that_python_ignored_is_no_error() -> None:
    frames = ["Traceback (most recent call last):", '  File "/u/x.py", line 1, in __del__']
    for opening in (
        "Exception ignored in: <function f>",
        "Exception in thread Thread-1:",
        "Error in atexit._run_exitfuncs:",
    ):
        assert left(opening, *frames, "KeyError: 'x'", "then this") == ["then this"]
    assert "KeyError: 'x'" in left(*frames, "KeyError: 'x'")


@pytest.mark.parametrize(
    "text",
    [
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited",
        "builtins.RuntimeError: [x/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:9: Connection reset by peer",
        "builtins.BrokenPipeError: [Errno 32] Broken pipe",
        "builtins.KeyboardInterrupt: ",
    ],
)
def test_what_is_said_of_another_rank_s_death(text: str) -> None:
    assert is_cascade(text)
