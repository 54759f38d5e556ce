"""Whose memory it was: the numbers in torch's message, in all its formats."""

from __future__ import annotations

import pytest

from dscampaign.orchestrator.failures import cuda_oom
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.tests.support.verdicts import judge_error

NOW = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is"
    " free. {others}Including non-PyTorch memory, this process has {ours} GiB memory in use. {allowed}Of the allocated"
    " memory {allocated} GiB is allocated by PyTorch, and {pieces} GiB is reserved by PyTorch but unallocated."
)
BEFORE = (
    "CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 80.00 GiB total capacity; {allocated} GiB already"
    " allocated; 1.00 GiB free; {reserved} GiB reserved in total by PyTorch) If reserved memory is >> allocated memory"
    " try"
)


def now(ours: float, allocated: float = 30.0, pieces: float = 0.5, others: str = "", allowed: str = "") -> str:
    """Torch 2.1 and later, on a GPU of 80 GiB with 1 GiB free; 2 GiB were wanted."""
    return NOW.format(ours=ours, allocated=allocated, pieces=pieces, others=others, allowed=allowed)


def kind(text: str, *siblings: int) -> FailureClass:
    memory = cuda_oom.read(text)
    assert memory is not None
    return memory.kind(siblings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (now(ours=78.5, allocated=77), FailureClass.OOM),
        (now(ours=40.0), FailureClass.FOREIGN_OOM),
        (now(ours=72.0, allocated=71), FailureClass.OOM),  # a neighbour, but a small one
        (now(ours=78.5, allocated=70, pieces=6), FailureClass.FRAGMENTATION),
        (now(ours=78.5, allocated=75, pieces=3), FailureClass.OOM),  # what every allocator has in hand
        (now(ours=20.0, allowed="20.50 GiB allowed; "), FailureClass.OOM),
        (BEFORE.format(allocated=77, reserved=78), FailureClass.OOM),
        (BEFORE.format(allocated=30, reserved=31), FailureClass.FOREIGN_OOM),
        (BEFORE.format(allocated=70, reserved=78), FailureClass.FRAGMENTATION),
        (BEFORE.format(allocated=77, reserved=78).replace("reserved in total by PyTorch", "cached"), FailureClass.OOM),
    ],
)
def test_the_numbers_tell_whose_fault_it_was(text: str, expected: FailureClass) -> None:
    assert kind(text) is expected


def test_a_process_that_the_driver_cannot_see_has_what_torch_has() -> None:
    text = now(ours=17179869184.0, allocated=77, others="Process 7 has 17179869184.00 GiB memory in use. ")
    memory = cuda_oom.read(text)
    assert memory is not None
    assert (memory.ours, memory.others) == (77.5, ())
    assert memory.kind() is FailureClass.OOM


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory",
        "CUDA out of memory.",
        "CUDA out of memory. Tried to allocate 2.00 GiB.",
        now(ours=40.0).split("Including")[0],  # cut off: nothing can be said of others
    ],
)
def test_without_the_numbers_nothing_is_concluded(text: str) -> None:
    assert cuda_oom.read(text) is None


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("", FailureClass.FRAGMENTATION), ("expandable_segments:True", FailureClass.OOM)],
)
def test_pieces_that_cannot_be_joined_any_better_are_too_little_memory(setting: str, expected: FailureClass) -> None:
    """What would have joined them was on: to advise it again would help nobody."""
    verdict = judge_error("torch.OutOfMemoryError", now(ours=78.5, allocated=70, pieces=6), allocator=setting)
    assert verdict.kind is expected
    assert ("expandable_segments" in verdict.hint + verdict.reason) is (expected is FailureClass.FRAGMENTATION)
