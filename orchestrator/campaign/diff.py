"""Compares a spec's runs with the stored ones, by the hash of their experiment: new, kept, changed or removed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dscampaign.db.records import RunRow
from dscampaign.db.rows import StoredDocument
from dscampaign.db.states import ABSENT, DECIDED_RUN, SETTLED_RUN, STARTED_RUN, UNNAMED, CauseCode, RunState
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.executors.job_request import run_config
from dscampaign.orchestrator.formatting import flat_fields, some
from dscampaign.orchestrator.spec.effects import COMPARES_ALIKE, MEASURES
from dscampaign.orchestrator.spec.expand import Run
from dscampaign.orchestrator.spec.model import RunConfig, TrainConfig

_EXPERIMENT = ("train.", "deepspeed.", "command", "launcher", "python", "ranks_per_node", "slurm.nodes", "env.")
_RANKS = ("ranks_per_node", "slurm.nodes")
_STEPS = "train.steps:"
_QUEUES = ("partition", "account", "qos", "reservation")  # fields of `slurm` that name the place in which a job waits
_UNDER_WAY = (RunState.QUEUED, RunState.RUNNING)
_RETENTION = ("keep_checkpoints", "keep_best")
_LONGER = (
    "A run continues for more steps only with a constant schedule, a checkpoint and no other change; "
    "`campaign promote` writes the spec of a longer run"
)


@dataclass(frozen=True)
class SpecDiff:
    """The effect of submitting a spec."""

    create: tuple[Run, ...]
    keep: tuple[tuple[RunRow, Run], ...]  # stored runs that the spec still names, with their present form in the spec
    # stored runs of the same name whose experiment was changed before anything came of them
    replace: tuple[tuple[RunRow, Run], ...]
    drop: tuple[RunRow, ...]  # stored runs that the spec no longer names


def merge(runs: Sequence[Run], stored: Sequence[RunRow], saved: Collection[int] = ()) -> SpecDiff:
    """Compare the runs of a spec with the stored ones; `saved` has the ids of stored runs that have a checkpoint.

    A run with more steps is kept, even with another digest, if it can go on from its last checkpoint. Raises UserError
    if a run that has begun would become another experiment, or a run with a checkpoint would resume on other ranks.
    """
    by_hash = {row.config_hash: row for row in reversed(stored)}
    matches = {run.config_hash: by_hash[run.config_hash] for run in runs if run.config_hash in by_hash}
    same = {row.name for row in matches.values()}
    by_name = {row.name: row for row in stored if row.name not in same}
    longer = ((by_name[run.name], run) for run in runs if run.config_hash not in matches and run.name in by_name)
    matches |= {run.config_hash: row for row, run in longer if _goes_on(row, run, saved)}
    keep = tuple((matches[run.config_hash], run) for run in runs if run.config_hash in matches)
    kept = {row.name for row, _ in keep}
    by_name = {name: row for name, row in by_name.items() if name not in kept}
    rest = [run for run in runs if run.config_hash not in matches]
    rest = [replace(run, name=f"{run.name}-{run.config_hash[:6]}") if run.name in kept else run for run in rest]
    changed = tuple((by_name[run.name], run) for run in rest if run.name in by_name)
    differing = ((row, run) for row, run in keep if not unchanged(row, run))
    measured = ((row, run) for row, run in differing if _measures(row.config) != _measures(run.config))
    _refuse_started([*changed, *measured])
    _refuse_other_ranks([(row, run) for row, run in changed if row.id in saved])
    names = kept | {row.name for row, _ in changed}
    return SpecDiff(
        create=tuple(run for run in rest if run.name not in by_name),
        keep=keep,
        replace=changed,
        drop=tuple(row for row in stored if row.name not in names),
    )


def unchanged(row: RunRow, run: Run) -> bool:
    """Return whether the store has the very text that the spec asks for."""
    return isinstance(row.config, StoredDocument) and row.config.text == run.stored_text


def desired_again(row: RunRow) -> RunRow:
    """Return the row once the spec names its run again: cancelled for its absence, it gets fresh budgets."""
    if row.desired not in UNNAMED:
        return row
    absent, row = row.desired == ABSENT, replace(row, desired="run")
    if row.state in DECIDED_RUN or not absent:
        return row
    state = RunState.PENDING if row.state is RunState.CANCELLED else row.state
    return replace(row, state=state, reason="", retry_epoch=row.retry_epoch + (row.generation > 0))


def asked_again(row: RunRow, run: Run) -> RunRow:
    """The row with an attempt to come if its job was refused, or waits, and the spec now asks for another."""
    if row.desired != "run" or unchanged(row, run):
        return row
    before, after = (config.get("slurm", {}) for config in (row.config, run.stored_config))
    if row.state is RunState.FAILED and row.has_cause(CauseCode.REFUSED) and before != after:
        return replace(row, state=RunState.PENDING, reason="", retry_epoch=row.retry_epoch + 1)
    moved = any(before.get(name) != after.get(name) for name in _QUEUES)
    other = before != after if row.has_cause(CauseCode.NEVER_STARTS) else moved
    return replace(row, retry_epoch=row.retry_epoch + 1) if row.state is RunState.QUEUED and other else row


def _longer_now(row: RunRow, run: Run) -> RunRow:
    """Fewer steps than a completed run has made change nothing."""
    steps, had = run.target_step, row.target_step
    if steps is None or had is None or (steps <= had and row.state is RunState.COMPLETED):
        return row
    row = replace(row, target_step=steps)
    if steps <= had or row.state not in SETTLED_RUN:
        return row
    retry = replace(row, state=RunState.PENDING, reason="", not_before_s=None, retry_epoch=row.retry_epoch + 1)
    return replace(retry, desired="run")


def as_kept(row: RunRow, run: Run) -> RunRow:
    """Return the row of a stored run that the spec still names, as submitting the spec leaves it.

    A completed run keeps the configuration of its results; only the number of checkpoints that stay may change.
    """
    row = _longer_now(asked_again(desired_again(row), run), run)
    if unchanged(row, run):
        return row
    asks = run.stored_config
    if row.state is RunState.COMPLETED:
        kept = {name: value for name, value in asks["train"].items() if name in _RETENTION}
        asks = {**row.config, "train": {**row.config.get("train", {}), **kept}}
    return replace(row, config=asks)


def _goes_on(row: RunRow, run: Run, saved: Collection[int]) -> bool:
    """Its steps so far count for the longer run if their learning rates are equal: with a fixed schedule."""
    before, after = run_config(row) if row.config else None, run.config
    if before is None or after.command is not None or (row.target_step or 0) > (run.target_step or 0):
        return False
    differences = _experiment_changes(before.model_dump(mode="json", exclude_none=True), run)
    same = all(change.startswith(_STEPS) for change in differences)
    alike = row.stage is run.stage
    fixed = after.train.schedule == "constant" or after.train.schedule_steps is not None
    steps = before.train.steps is not None and after.train.steps is not None and fixed
    return same and alike and steps and (not differences or (row.id in saved and row.state not in _UNDER_WAY))


def _refuse_started(changed: Sequence[tuple[RunRow, Run]]) -> None:
    started = [(row, run) for row, run in changed if row.state in STARTED_RUN]
    if not started:
        return
    (first, run), more = started[0], f" (and {len(started) - 1} more)" if len(started) > 1 else ""
    differing = _experiment_changes(first.config, run)
    shown = f": {some(differing, 3)}" if differing else ""
    same = "results under a name must come from a single experiment"
    message = f"run {first.name}{more} is {first.state}, and its experiment has changed in the spec{shown}"
    advice = "cancel it first, or " if first.state is not RunState.COMPLETED else ""
    longer = (run.target_step or 0) > (first.target_step or 0) and run.config.command is None
    note = f". {_LONGER}" if longer else ""
    raise UserError(message, f"{same}: {advice}give the campaign another name{note}")


def _refuse_other_ranks(changed: Sequence[tuple[RunRow, Run]]) -> None:
    """Refuse: only as many ranks as wrote a checkpoint can load it, and the run would restart from step 0."""
    for row, run in changed:
        differing = _experiment_changes(row.config, run)
        if differing and all(change.startswith(_RANKS) for change in differing):
            message = f"run {row.name} has a checkpoint, and the spec now gives it other ranks: {', '.join(differing)}"
            raise UserError(message, "keep them, or give the campaign another name to start afresh")


def _measures(config: Mapping[str, Any] | RunConfig) -> dict[str, Any]:
    """Return the fields beside the experiment's that change a compared figure; only the built-in trainer uses them."""
    fields = config if isinstance(config, Mapping) else config.model_dump(include={"command", "train"})
    train = fields.get("train") or {}
    measures = {name: train.get(name, TrainConfig.model_fields[name].default) for name in MEASURES}
    return {} if fields.get("command") else measures


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the fields that differ, as `train.lr: 0.001 → 0.01`."""
    old, new = dict(flat_fields(before)), dict(flat_fields(after))
    return [f"{name}: {_word(old, name)} → {_word(new, name)}" for name in old | new if old.get(name) != new.get(name)]


def _experiment_changes(before: Mapping[str, Any], run: Run) -> list[str]:
    names = ((change, change.partition(":")[0]) for change in changes(before, run.stored_config))
    return [c for c, name in names if name.startswith(_EXPERIMENT) and name.rpartition(".")[2] not in COMPARES_ALIKE]


def _word(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name, "not set")
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
