"""Memory: what one run's out-of-memory means for itself, for its siblings, and when it is taken back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dscampaign.db.records import AttemptRow, MemoryObservation
from dscampaign.db.states import AttemptState, RunState
from dscampaign.orchestrator.memory import config_changes
from dscampaign.orchestrator.memory.prediction import Ledger, memory_key
from dscampaign.orchestrator.reconcile.actions import Resize, SetRun, Submit
from dscampaign.orchestrator.reconcile.decide import decide
from dscampaign.orchestrator.reconcile.snapshot import AttemptView, RunView
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.orchestrator.spec.sections import RetryConfig
from dscampaign.tests.support.policy_world import attempt_row, ended_row, job, of_kind, run_row, run_view, snapshot

TRAIN = {"model": "gpt2", "dataset": "text", "global_batch": 64, "micro_batch": 32, "steps": 100}
CONFIG = RunConfig.model_validate({"train": TRAIN, "slurm": {"gpus_per_node": 2}})
KEY = memory_key(CONFIG) or ""


def a_run(*attempts: Any, **values: Any) -> RunView:
    """A run of 32 samples a rank, all at once if they fit."""
    return run_view(*attempts, config=CONFIG, **values)


def seen(micro: int, peak_gb: float | None = None, *, oom: bool = False) -> MemoryObservation:
    """What some run of the same key has shown on an 80 GB device."""
    return MemoryObservation(f"{KEY}|H100|2", 1, micro, oom, peak_reserved_gb=peak_gb, usable_gb=80.0)


def ledgers(*observations: MemoryObservation) -> dict[str, Ledger]:
    return {KEY: Ledger.of(observations)}


LINE = (seen(4, 20.0), seen(8, 30.0))  # 10 + 2.5 a sample: 16 takes 50 GB, 32 would take 90


def submitted(view: RunView, **values: Any) -> Submit:
    [submit] = of_kind(Submit, decide(snapshot(view, **values)))
    return submit


def test_a_sibling_starts_at_the_predicted_size_with_the_reason() -> None:
    submit = submitted(a_run(), ledgers=ledgers(*LINE))
    assert (submit.micro_batch, submit.predicted_gb) == (16, 50.0)
    assert "32 is predicted to take 90.0 of 80.0 GB" in submit.why


def test_one_out_of_memory_is_enough_where_the_line_is_known() -> None:
    submit = submitted(a_run(ended_row(1, "oom", micro_batch=32)), ledgers=ledgers(*LINE, seen(32, oom=True)))
    assert (submit.micro_batch, submit.predicted_gb) == (16, 50.0)
    steep = (seen(1, 20.0), seen(2, 35.0))  # 5 + 15 a sample: 4 takes 65 GB
    assert submitted(a_run(ended_row(1, "oom", micro_batch=32)), ledgers=ledgers(*steep)).micro_batch == 4


def test_it_grows_again_only_where_the_run_starts_again_anyway() -> None:
    small = ended_row(1, "preempted", micro_batch=4, last_step=9)
    assert submitted(a_run(small), ledgers=ledgers(*LINE)).micro_batch == 16
    assert submitted(a_run(small)).micro_batch == 4
    running = AttemptView(attempt_row(micro_batch=4), job("RUNNING"))
    assert of_kind(Resize, decide(snapshot(a_run(running), ledgers=ledgers(*LINE)))) == []


def waiting(**values: Any) -> RunView:
    """A run whose attempt waits in the queue."""
    row = attempt_row(state=AttemptState.QUEUED, micro_batch=32, accumulation=1, memory_key=KEY)
    view = AttemptView(row, job("PENDING", ended_s=None), **values)
    return a_run(view, run=run_row(generation=1, state=RunState.QUEUED))


def test_a_queued_attempt_is_resized_once() -> None:
    [resize] = of_kind(Resize, decide(snapshot(waiting(), ledgers=ledgers(*LINE))))
    assert (resize.micro_batch, resize.predicted_gb) == (16, 50.0)
    view = waiting()
    told = replace(view, attempts=tuple(replace(a, row=replace(a.row, micro_batch=16)) for a in view.attempts))
    assert of_kind(Resize, decide(snapshot(told, ledgers=ledgers(*LINE)))) == []


def test_a_begun_attempt_is_not_resized() -> None:
    assert of_kind(Resize, decide(snapshot(waiting(claimed=True), ledgers=ledgers(*LINE)))) == []


def test_a_changed_run_learns_from_those_that_were_changed_alike() -> None:
    retry = RetryConfig(allow=("activation_checkpointing",))
    config = CONFIG.model_copy(update={"retry": retry})
    changed = config_changes.changed(CONFIG, ("activation_checkpointing",))
    last = ended_row(1, "preempted", micro_batch=1, last_step=3, changes="activation_checkpointing")
    view = run_view(last, config=config)
    other = {memory_key(changed) or "": Ledger.of((seen(4, 12.0), seen(8, 14.0)))}
    assert submitted(view, ledgers=other).micro_batch == 32
    assert submitted(view, ledgers=ledgers(*LINE)).micro_batch == 1


FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried} GiB. GPU 0 has a total capacity of 79.11 GiB"
    " of which 3.06 GiB is free. Including non-PyTorch memory, this process has {ours} GiB memory in use. Of the"
    " allocated memory 74.50 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated."
)
NO_SIZES = "torch.OutOfMemoryError: CUDA out of memory."
ON_CPU = "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes."


def _ends(*proofs: str) -> list[AttemptRow]:
    """Attempts at half the micro-batch of the one before."""
    rows = (ended_row(number, "oom", micro_batch=32 >> number) for number in range(1, len(proofs) + 1))
    return [
        replace(row, evidence={**row.evidence, "line": {"file": "0_rank0.log", "number": 1, "text": text}})
        for row, text in zip(rows, proofs, strict=True)
    ]


@pytest.mark.parametrize(
    ("first", "second", "helps"),
    [
        (FULL.format(tried="8.00", ours="76.04"), FULL.format(tried="8.00", ours="76.04"), False),
        (FULL.format(tried="8.00", ours="76.04"), FULL.format(tried="8.00", ours="76.20"), False),
        (FULL.format(tried="8.00", ours="76.04"), FULL.format(tried="4.00", ours="76.04"), True),
        (FULL.format(tried="8.00", ours="76.04"), FULL.format(tried="8.00", ours="60.00"), True),
        (NO_SIZES, NO_SIZES, True),
        (ON_CPU, ON_CPU, False),
        (ON_CPU, ON_CPU.replace("858", "429"), True),
    ],
)
def test_an_allocation_that_no_micro_batch_changes_is_tried_twice(first: str, second: str, helps: bool) -> None:
    script = CONFIG.model_copy(update={"command": ["t.py"]})
    actions = decide(snapshot(run_view(*_ends(first, second), config=script)))
    assert bool(of_kind(Submit, actions)) is helps
    if not helps:
        [state] = of_kind(SetRun, actions)
        assert state.state is RunState.FAILED
        assert "at micro-batch 8 by the same allocation as at 16" in state.reason
        assert "{micro_batch}" in state.reason
    assert of_kind(Submit, decide(snapshot(run_view(*_ends(first), config=script))))


def test_a_micro_batch_that_has_trained_is_not_given_up_for_an_allocation_like_an_earlier_one() -> None:
    first, last = _ends(ON_CPU, ON_CPU)
    between = ended_row(2, "node", micro_batch=8, start_step=0, last_step=3)
    last = replace(last, id=3, generation=3)
    assert not of_kind(Submit, decide(snapshot(run_view(first, replace(last, id=2, generation=2), config=CONFIG))))
    assert of_kind(Submit, decide(snapshot(run_view(first, between, last, config=CONFIG))))


def _failed_without_retry(view: RunView) -> str:
    actions = decide(snapshot(view))
    assert not of_kind(Submit, actions)
    [state] = of_kind(SetRun, actions)
    assert state.state is RunState.FAILED
    return state.reason


def test_a_script_that_gets_no_micro_batch_is_not_tried_with_a_smaller_one() -> None:
    script = CONFIG.model_copy(update={"command": ["t.py"]})
    without = RunConfig.model_validate({"command": ["t.py"]})
    end = ended_row(1, "oom", micro_batch=32)
    reason = _failed_without_retry(run_view(end, config=script, fixes_batch=lambda: True))
    hint = (
        "to try a smaller micro-batch, set train.global_batch and train.micro_batch, and use {micro_batch} in `command`"
    )
    assert reason == f"oom · {hint}"
    assert _failed_without_retry(run_view(replace(end, micro_batch=None), config=without)) == reason
    fragments = run_view(replace(end, failure_class="fragmentation"), config=script, fixes_batch=lambda: True)
    [submit] = of_kind(Submit, decide(snapshot(fragments)))  # these join without a smaller one
    assert submit.changes == (config_changes.EXPANDABLE_SEGMENTS,)
