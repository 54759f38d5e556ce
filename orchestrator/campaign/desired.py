"""Changes a campaign's desired state: submit, cancel, retry. A pass of the reconciler does the rest."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from dscampaign import __version__
from dscampaign.db import bulk, queries
from dscampaign.db.records import CampaignRow, RunRow
from dscampaign.db.rows import fields_of
from dscampaign.db.states import (
    ABSENT,
    CANCELLING,
    ENDED_RUN,
    REMOVED,
    RETRYABLE_RUN,
    UNNAMED,
    WANTED,
    WANTED_YET,
    CauseCode,
    RunState,
    shown_state,
)
from dscampaign.db.store import Store
from dscampaign.files.ownership import distrust, user_name
from dscampaign.files.private_files import make_private
from dscampaign.jobs.shared.checkpoint import newest_first
from dscampaign.jobs.shared.layout import Beside, CampaignPaths
from dscampaign.orchestrator.commands import in_pieces, typed
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.executors.job_request import run_config
from dscampaign.orchestrator.formatting import count
from dscampaign.orchestrator.reconcile.campaign_folder import CampaignFolder, require_free
from dscampaign.orchestrator.reconcile.notify import require
from dscampaign.orchestrator.reconcile.origin import Origin, that_matter
from dscampaign.orchestrator.reconcile.search import new_run
from dscampaign.orchestrator.spec.expand import Run, SharedSections
from dscampaign.orchestrator.spec.follow_up import follow_up

from .code_copies import CodeCopies, git, has_code
from .diff import SpecDiff, as_kept, merge
from .gpu_hours import GpuHours, ToRun, hours_of, jobs_of
from .submission import Submission

_KEPT = ("desired", "state", "reason", "retry_epoch", "not_before_s", "target_step", "config")
"""Columns of a stored run in the spec that submitting may change."""


def spec_diff(store: Store | None, submission: Submission) -> tuple[CampaignRow | None, SpecDiff]:
    """Return the effect of submitting; `store` is None before it exists. Raises UserError, as does `merge`."""
    if store is None:
        _require_usable(submission, None, None)
        return None, SpecDiff(submission.runs, (), (), ())
    with store.read() as conn:
        campaign, stored, saved = _read(conn, submission)
    _require_usable(submission, store, campaign)
    submission = submission.with_trials(stored)
    return campaign, merge(submission.runs, stored, saved - _lost(saved, stored, submission))


def record(store: Store, submission: Submission) -> CampaignRow:
    """Record the runs of the spec as desired; idempotent. The folder of a new campaign is made here.

    Raises UserError as `spec_diff`; Unreachable if the folder of a known campaign is away, or cannot be written.
    """
    with store.read() as conn:
        existing, stored, saved = _read(conn, submission)
    _require_usable(submission, store, existing)
    if notify := submission.rules["notify"]:
        require(notify)
    if existing is None:
        make_private(submission.dir)
    else:
        CampaignFolder(existing).require_or_begin_anew()
    copies = submission.codes(make=True)
    codes = {run.config_hash: copies.of(run.config).hash for run in submission.runs}
    lost = _lost(saved, stored, submission.with_trials(stored))
    with store.write() as conn:
        campaign = queries.campaign_by_name(conn, submission.spec.name)
        values = _campaign_values(submission, campaign, copies)
        if campaign is None:
            campaign_id = queries.insert_campaign(conn, **values)
        else:
            campaign_id = campaign.id
            _check_unchanged(campaign, submission)  # a removal may have begun
            queries.update_campaign(conn, campaign_id, **{**values, "desired": "active"})  # before its runs are read
        _, stored, saved = _read(conn, submission)
        present = submission.with_trials(stored)  # a pass may have added some
        codes = {run.config_hash: codes[submission.runs[0].config_hash] for run in present.runs} | codes
        _apply(conn, campaign_id, merge(present.runs, stored, saved - lost), present.runs, codes)
        recorded = queries.campaign_by_name(conn, submission.spec.name)
        assert recorded is not None
        if campaign is None:  # before the commit: a campaign without its folder could never begin
            CampaignFolder(recorded).create(store.url_without_password)
    return recorded


def _read(conn: Connection, submission: Submission) -> tuple[CampaignRow | None, list[RunRow], set[int]]:
    campaign = queries.campaign_by_name(conn, submission.spec.name)
    if campaign is None:
        return None, [], set()
    _check_unchanged(campaign, submission)
    return campaign, queries.runs(conn, campaign.id), set(queries.saved_steps(conn, campaign.id))


def _lost(saved: Collection[int], stored: Sequence[RunRow], submission: Submission) -> set[int]:
    paths, same = CampaignPaths(submission.dir, submission.spec.name), {run.config_hash for run in submission.runs}
    if not paths.runs.is_dir():  # it is away: nobody knows
        return set()
    changed = [row for row in stored if row.id in saved and row.config_hash not in same]
    return {row.id for row in changed if not newest_first(paths.run(row.name).checkpoints(row.config_hash))}


def _require_usable(submission: Submission, store: Store | None, campaign: CampaignRow | None) -> None:
    """Make sure that the campaign may use its folder, and that nobody else can write to it."""
    paths = CampaignPaths(submission.dir, submission.spec.name)
    may_be_its_own = store is None and paths.marker.exists()  # made with a store that was deleted
    if campaign is None and not may_be_its_own:
        require_free(paths, store.url_without_password if store else "")
    for place in (paths.root, paths.dir, paths.data, paths.root / Beside.CODE):
        if os.path.lexists(place):
            try:
                doubt = distrust(place, paths.root)
            except OSError as exc:  # a link to nowhere, or to itself
                raise UserError(f"{place}: {exc.strerror}", "look where it leads, or use --dir") from exc
            if doubt:
                raise UserError(f"{doubt}, so they could run any code as you", f"{doubt.hint}, or use --dir")


@dataclass(frozen=True)
class Effect:
    """The effect of `cancel` or `retry`: runs that end or begin again, those without another attempt, and the rest."""

    verb: str
    changed: Sequence[RunRow]
    left: Sequence[RunRow]
    given_up: Sequence[RunRow] = ()

    @property
    def text(self) -> str:
        """The effect as text: `3 runs to retry: 2 failed, 1 held`, and the runs with less or no effect."""
        number = count(len(self.changed), "run") if self.changed else "nothing"
        lines = [f"{number} to {self.verb}" + (f": {_counted(self.changed)}" if self.changed else "")]
        lines += [f"no further attempt: {_counted(self.given_up)}"] if self.given_up else []
        return "\n".join([*lines, *([f"unchanged: {_counted(self.left)}"] if self.left else [])])

    @property
    def hours(self) -> GpuHours:
        """The GPU-hours that the jobs of a retry can use within their time limits; 0 without Slurm."""
        attempts = (ToRun(run, run_config(run)) for run in self.changed)
        return hours_of(jobs_of(attempt for attempt in attempts if attempt.config.executor == "slurm"))


def _counted(runs: Iterable[RunRow]) -> str:
    absent = "no longer in the spec"
    shown = Counter(absent if run.desired in UNNAMED else str(shown_state(run.state, run.desired)) for run in runs)
    return ", ".join(f"{number:,} {noun}" for noun, number in shown.items())


def cancel(store: Store, campaign: CampaignRow, names: Collection[str] | None) -> Effect:
    """Mark these runs, or all, as cancelled; failed runs too."""
    with store.write() as conn:
        runs = _chosen(conn, campaign, names)
        wanted = [run for run in runs if run.desired in WANTED and run.state is not RunState.COMPLETED]
        for some in in_pieces("runs marked", wanted):
            marks = {run.id: {"desired": ABSENT if run.desired in UNNAMED else "cancel"} for run in some}
            bulk.change_runs(conn, marks)
            events = (queries.NewEvent("cancel.asked", "cancelled by the user", run.id) for run in some)
            queries.add_events(conn, campaign.id, list(events))
    given_up = [run for run in wanted if run.state in (RunState.FAILED, RunState.SCREENED)]
    chosen = {run.id for run in given_up}
    left = [run for run in runs if run.state in ENDED_RUN and run.id not in chosen]
    return Effect("cancel", [run for run in runs if run.state not in ENDED_RUN], left, given_up)


def what_retries(
    conn: Connection,
    campaign: CampaignRow,
    names: Collection[str] | None,
    *,
    cancelled: bool = False,
    unnamed: bool = True,
) -> Effect:
    """Return the runs to retry: of these, or of all that failed or are held; with `cancelled`, cancelled runs too.

    Of all, and without `unnamed`, runs that the spec no longer names stay.
    """
    runs, states, early = _chosen(conn, campaign, names), RETRYABLE_RUN, set[int]()
    if names is None:
        unnamed, states = False, frozenset({RunState.FAILED, RunState.HELD, *([RunState.CANCELLED] * cancelled)})
    else:
        early = {run.run_id for run in queries.status(conn, campaign.id) if run.early}
    possible = (run for run in runs if run.state in states or run.id in early)
    again = {run.id: run for run in possible if unnamed or run.desired not in UNNAMED}
    return Effect("retry", [*again.values()], [run for run in runs if run.id not in again])


def retry(store: Store, campaign: CampaignRow, names: Collection[str] | None) -> Sequence[RunRow]:
    """Mark these runs, or all that failed or are held, for retry with fresh budgets; return the changed runs.

    They get the present code. If they are held for variables that this shell lacks, the campaign goes on without these.
    Raises UserError if a named run cannot be retried, or its code cannot be copied.
    """
    spec, origin = Path(campaign.provenance.get("spec", "")), Origin.of(campaign.provenance)
    copies = CodeCopies(Path(campaign.dir), spec, Path(origin.workdir), make=True)
    check_kept(campaign)
    codes = {}
    with store.read() as conn:
        for run in _to_retry(conn, campaign, names):
            code = copies.of(run_config(run))
            codes[run.id] = run.code if code.why and has_code(run) else code.hash  # its script may be out of reach
    with store.write() as conn:
        chosen = _to_retry(conn, campaign, names)
        values: dict[str, Any] = {"state": RunState.PENDING, "reason": "", "not_before_s": None}
        changed, events = {}, []
        for run in chosen:
            now = codes.get(run.id, run.code)
            desired = WANTED_YET if run.desired in UNNAMED else "run"
            changed[run.id] = {**values, "desired": desired, "retry_epoch": run.retry_epoch + 1, "code": now}
            message = f"retried by the user{f' with code {now}' if now != run.code else ''}"
            events.append(queries.NewEvent("retry.asked", message, run.id))
        bulk.change_runs(conn, changed)
        queries.add_events(conn, campaign.id, events)
        _go_on_without(conn, campaign, chosen)
    return chosen


def _to_retry(conn: Connection, campaign: CampaignRow, names: Collection[str] | None) -> Sequence[RunRow]:
    effect = what_retries(conn, campaign, names)
    if names is not None:
        require_retried(effect.left)
    return effect.changed


def require_retried(left: Sequence[RunRow]) -> None:
    """Raise UserError if a retry by name leaves runs out."""
    if left:
        state = shown_state(left[0].state, left[0].desired)
        hint = "only a run that failed, is held, was cancelled or completed early can be retried"
        hint = "it can be retried once it has ended" if state == CANCELLING else hint
        raise UserError(f"run {left[0].name} is {state}", hint)


def _go_on_without(conn: Connection, campaign: CampaignRow, retried: Sequence[RunRow]) -> None:
    """Forget the variables that runs were held for: the user has retried them without."""
    fresh = queries.campaign_by_id(conn, campaign.id) or campaign
    origin = Origin.of(fresh.provenance)
    held = [run.cause for run in retried if run.has_cause(CauseCode.MISSING_VARIABLES)]
    lacked = {name for cause in held if cause for name in cause.names}
    dropped = [name for name in origin.missing(os.environ) if name in lacked]
    if dropped:
        kept = [name for name in origin.variables if name not in dropped]
        queries.update_campaign(conn, campaign.id, provenance={**fresh.provenance, "variables": kept})
        queries.add_event(conn, campaign.id, "variables.dropped", f"continues without {', '.join(dropped)}")


def _chosen(conn: Connection, campaign: CampaignRow, names: Collection[str] | None) -> list[RunRow]:
    runs = queries.runs(conn, campaign.id)
    if names is None:
        return runs
    if unknown := set(names) - {run.name for run in runs}:
        raise UserError(f"no run named {min(unknown)} in {campaign.name}", f"see `{typed('status', campaign.name)}`")
    wanted = frozenset(names)
    return [run for run in runs if run.name in wanted]


def check_kept(campaign: CampaignRow) -> None:
    """Raise UserError for a campaign that is being removed."""
    if campaign.desired == REMOVED:
        raise UserError(f"campaign {campaign.name} is being removed", f"`{typed('rm', campaign.name)}` finishes it")


def _check_unchanged(campaign: CampaignRow, submission: Submission) -> None:
    check_kept(campaign)
    if Path(campaign.dir) != submission.dir:
        hint = f"submit with --dir {campaign.dir}, or give the campaign another name"
        raise UserError(f"campaign {campaign.name} lives in {campaign.dir}, not in {submission.dir}", hint)
    if campaign.executor != submission.spec.executor:
        message = f"campaign {campaign.name} runs on {campaign.executor}, the spec says {submission.spec.executor}"
        raise UserError(message, "give the campaign another name")


def _campaign_values(submission: Submission, before: CampaignRow | None, copies: CodeCopies) -> dict[str, Any]:
    spec, path = submission.spec, submission.spec_path
    earlier = Origin.of(before.provenance).variables if before else ()
    return {
        "name": spec.name,
        "spec": submission.text,
        "spec_hash": hashlib.sha256(submission.text.encode()).hexdigest(),
        "dir": str(submission.dir),
        "executor": spec.executor,
        "limits": spec.limits.model_dump(exclude_none=True),
        "provenance": {
            "version": __version__,
            "user": user_name(os.geteuid()),
            "spec": str(path),
            "git": git(path.parent, "describe", "--always", "--dirty", "--abbrev=12") or "",
            "workdir": str(submission.workdir),
            "python": sys.executable,
            "variables": sorted({*earlier, *_variables(submission, copies)}),
            **submission.rules,
            "then": _then(submission, copies),
        },
    }


def _then(submission: Submission, copies: CodeCopies) -> dict[str, Any] | None:
    """Return the follow-ups as the reconciler needs them, with the code of each."""
    if not (stages := submission.stages):
        return None
    run, codes = submission.runs[0], dict[str, str]()
    for stage, section in stages.items():
        made = follow_up(section, stage, run.name, run.config, run.params, run.repeat, "", "")
        codes[stage] = copies.of(made.config).hash
    return {"stages": stages, "codes": codes, "open": True}


def _variables(submission: Submission, copies: CodeCopies) -> list[str]:
    spec = submission.spec
    return that_matter(
        os.environ,
        read={name for code in copies.seen if code.copy for name in code.copy.reads},
        setup="\n".join(spec.slurm.setup if spec.executor == "slurm" else spec.local.setup),
        explicit=spec.env,
        on_slurm=spec.executor == "slurm",
    )


def _apply(
    conn: Connection, campaign_id: int, change: SpecDiff, order: Sequence[Run], codes: Mapping[str, str]
) -> None:
    places = ((run, ordinal if run.ordinal is None else run.ordinal) for ordinal, run in enumerate(order))
    ordinals = {run.config_hash: ordinal for run, ordinal in places}
    sections = SharedSections()
    new = [new_run(run, ordinals[run.config_hash], codes[run.config_hash], sections) for run in change.create]
    for some in in_pieces("runs recorded", new):
        bulk.insert_runs(conn, campaign_id, some)
    events: list[queries.NewEvent] = []
    changed: dict[int, dict[str, Any]] = {row.id: {"desired": ABSENT} for row in change.drop}
    for row, run in change.keep:
        after = as_kept(row, run)
        values = {name: value for name in _KEPT if (value := getattr(after, name)) != getattr(row, name)}
        values |= {"params": run.params, "ordinal": ordinals[run.config_hash]}
        changed[row.id] = values | ({} if has_code(row) else {"code": codes[run.config_hash]})
        if (after.target_step or 0) > (row.target_step or 0):
            message = f"continues to step {after.target_step:,}, not {row.target_step:,}"
            events.append(queries.NewEvent("longer", message, row.id))
    for row, run in change.replace:
        values = fields_of(new_run(run, ordinals[run.config_hash], codes[run.config_hash]))
        changed[row.id] = {**values, "desired": "run", "not_before_s": None}
    bulk.change_runs(conn, changed)
    events += [queries.NewEvent("replaced", "its experiment changed in the spec", row.id) for row, _ in change.replace]
    queries.add_events(conn, campaign_id, events)
