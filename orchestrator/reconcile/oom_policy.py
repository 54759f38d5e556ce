"""The micro-batch and the changes with which a run fits into memory. Pure.

The global batch is never touched. Measurements of like runs (the ledger, see `memory.prediction`) decide where to begin
and how far to go down; without them the micro-batch is halved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dscampaign.db.records import AttemptRow
from dscampaign.orchestrator.failures import cuda_oom
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.memory import config_changes, prediction
from dscampaign.orchestrator.memory.prediction import Ledger

from .attempt_history import EndedAttempt, count
from .snapshot import RunView


@dataclass(frozen=True)
class Fit:
    """How an attempt is made to fit."""

    micro_batch: int | None
    changes: tuple[str, ...] = ()
    predicted_gb: float | None = None  # the peak, None if the ledger knows too little
    why: str = ""  # the change and its reason, "" for none


def starting_fit(view: RunView, last: AttemptRow | None, ledgers: Mapping[str, Ledger]) -> Fit:
    """Return how to start a run, or to start it again after an end that was not for memory.

    A change that was necessary once stays, until the ledger knows that more fits: only here, where the run starts again
    anyway, does the micro-batch grow. `last` is its newest attempt of the present configuration.
    """
    changes = tuple(last.changes.split()) if last else ()
    train = view.config.train
    requested = train.fixed_micro_batch
    micro = (last.micro_batch if last else None) or requested
    ledger = _ledger(view, changes, ledgers)
    if ledger is None or not train.global_batch or not requested:
        return Fit(micro, changes)
    choice = prediction.start_micro_batch(
        train.global_batch, train.data_parallel(view.config.world_size()), requested, ledger
    )
    if micro and choice.predicted_gb is None:  # nothing was measured that would make a larger one fit
        return Fit(min(micro, choice.micro_batch), changes, None, choice.why)
    return Fit(choice.micro_batch, changes, choice.predicted_gb, choice.why)


def after_out_of_memory(view: RunView, history: Sequence[EndedAttempt], ledgers: Mapping[str, Ledger]) -> Fit | str:
    """Return the next configuration after the last of these attempts ran out of memory, or why there is none."""
    last, batch = history[-1], view.config.train.global_batch
    micro = last.row.micro_batch
    tries = count(history, FailureClass.OOM, FailureClass.FRAGMENTATION)
    if tries > view.retry.oom:
        return f"{last.reason} · retry.oom = {view.retry.oom} is used up"
    ledger = _ledger(view, last.changes, ledgers) or Ledger(())
    too_big = micro is not None and ledger.fits(micro) is False  # then joining the pieces would not help
    fragmented = last.kind is FailureClass.FRAGMENTATION and config_changes.EXPANDABLE_SEGMENTS not in last.changes
    if fragmented and not too_big:
        reason = "memory was free but fragmented, tried with expandable segments"
        return Fit(micro, (*last.changes, config_changes.EXPANDABLE_SEGMENTS), None, reason)
    if not batch or not micro or view.fixes_batch():
        use = "" if view.config.command is None else ", and use {micro_batch} in `command`"
        return f"{last.reason} · to try a smaller micro-batch, set train.global_batch and train.micro_batch{use}"
    if before := _same_before(history):
        return _next_change(view, last, micro, before.row.micro_batch)
    shares = view.config.train.data_parallel(view.config.world_size())
    if choice := prediction.after_oom(batch, shares, micro, ledger):
        reason = f"out of memory at micro-batch {micro}, tried at {choice.micro_batch} with the same global batch"
        return Fit(choice.micro_batch, last.changes, choice.predicted_gb, reason)
    return _next_change(view, last, micro)


def _same_before(history: Sequence[EndedAttempt]) -> EndedAttempt | None:
    """None if the last micro-batch has trained before: then other memory was in its way."""
    last = history[-1]
    if any(end.progressed and end.row.micro_batch == last.row.micro_batch for end in history[:-1]):
        return None
    others = (end for end in history[:-1] if end.row.micro_batch not in (None, last.row.micro_batch))
    alike = ((end, end.line, last.line) for end in others if end.changes == last.changes)
    return next((end for end, a, b in alike if a and b and cuda_oom.same_memory(a.text, b.text)), None)


def _next_change(view: RunView, last: EndedAttempt, micro: int, before: int | None = None) -> Fit | str:
    needs = f"out of memory at micro-batch {micro}"
    needs += f" by the same allocation as at {before}: a smaller one makes no difference" if before else ""
    change = config_changes.next_change(view.config, view.retry.allow, last.changes)
    if change is None:
        hint = "retry.allow may name activation_checkpointing, offload_optimizer, zero_stage; or use more ranks"
        if view.config.command is not None:
            hint = last.hint or "let the script use {micro_batch} everywhere, or take less memory, or use more ranks"
        return f"{needs} · {hint}"
    return Fit(micro, (*last.changes, change), None, f"{needs}, tried with {change}")


def _ledger(view: RunView, changes: Sequence[str], ledgers: Mapping[str, Ledger]) -> Ledger | None:
    key = prediction.memory_key(config_changes.changed(view.config, changes))
    return ledgers.get(key) if key else None
