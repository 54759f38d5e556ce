"""Adds the follow-ups of runs that have completed. Each has a name of its own, so none is added twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dscampaign.db import bulk, open_runs, queries
from dscampaign.db.records import CampaignRow, RunRow
from dscampaign.db.states import ABSENT, UNSETTLED_RUN, RunState, Stage
from dscampaign.jobs.agent.script_checkpoints import newest as newest_of_script
from dscampaign.jobs.shared.checkpoint import newest_first
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.orchestrator.executors.job_request import run_config
from dscampaign.orchestrator.spec.expand import Run
from dscampaign.orchestrator.spec.follow_up import follow_up, name_of

from .lease import FencedWriter
from .search import new_run


def follow(writer: FencedWriter, campaign: CampaignRow, paths: CampaignPaths) -> bool:
    """Add what follows the runs that have completed since the last pass; return whether anything does."""
    document = campaign.provenance.get("then")
    if not document or campaign.desired != "active":
        return False
    with writer.store.read() as conn:
        runs = queries.status(conn, campaign.id)
        names = {run.name for run in runs}
        full = [run for run in runs if run.stage is Stage.FULL and run.desired != ABSENT]
        done = (run for run in full if run.state is RunState.COMPLETED)
        following = ((run, {name_of(run.name, stage, run.repeat) for stage in document["stages"]}) for run in done)
        rows = open_runs.runs_of(conn, [run.run_id for run, stages in following if not stages <= names])
    new = []
    for row in rows:
        config, checkpoint = run_config(row), _checkpoint_of(paths, row)
        for stage, section in document["stages"].items():
            run = follow_up(section, stage, row.name, config, row.params, row.repeat, row.config_hash, checkpoint)
            if run.name not in names:
                new.append(new_run(run, row.ordinal, document["codes"].get(stage, row.code)))
    is_open = any(run.state in UNSETTLED_RUN for run in full)
    if not new and document["open"] == is_open:
        return False
    with writer.write() as conn:
        fresh = queries.lock_campaign(conn, campaign.id)
        if fresh is None or (fresh.spec_hash, fresh.desired) != (campaign.spec_hash, campaign.desired):
            return False  # its user has submitted again meanwhile: the next pass looks anew
        provenance = {**fresh.provenance, "then": {**document, "open": is_open}}
        queries.update_campaign(conn, campaign.id, provenance=provenance)
        bulk.insert_runs(conn, campaign.id, new)
    return bool(new)


def _checkpoint_of(paths: CampaignPaths, row: RunRow) -> str:
    """Return the newest checkpoint of a run, of the trainer or of its script; its folder if it has none."""
    run = paths.run(row.name)
    folder = run.checkpoints(row.config_hash)
    return str(next(iter(newest_first(folder)), "") or newest_of_script(folder, lambda *_: None) or run.dir)


def follow_ups_of(
    rows: Sequence[RunRow], runs: Sequence[Run], stages: Mapping[str, Any], paths: CampaignPaths
) -> Iterator[Run]:
    """Yield the follow-ups among stored runs, as a spec with these runs and stages has them now."""
    stored = {row.name: row for row in rows}
    for run in runs:
        row = stored.get(run.name)
        for stage, section in stages.items():
            if row and name_of(run.name, stage, run.repeat) in stored:
                where = _checkpoint_of(paths, row)
                yield follow_up(section, stage, run.name, run.config, run.params, run.repeat, row.config_hash, where)
