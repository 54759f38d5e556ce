"""Attempts about to be submitted: grouped into job arrays; in the store, in state ``intent``; with their payloads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection

from dscampaign.db import bulk, queries
from dscampaign.db.records import SUBMITTING, AttemptRow, NewAttempt, RunRow
from dscampaign.db.states import RunState
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.jobs.shared.payload import Payload
from dscampaign.orchestrator.executors import job_request
from dscampaign.orchestrator.executors.base import ARRAY_LIMIT
from dscampaign.orchestrator.memory import config_changes
from dscampaign.orchestrator.memory.prediction import memory_key
from dscampaign.orchestrator.spec.model import AUTO

from .actions import Failures, SetAside, Submit
from .forecast import read_history
from .lease import FencedWriter
from .origin import Origin
from .set_aside import in_words

Jobs = Sequence[Sequence[Submit]]
"""Attempts by the job that runs them."""


class Element(NamedTuple):
    """An element of a batch that is being submitted."""

    row: AttemptRow
    action: Submit
    payload: Payload


def batches(actions: Sequence[Submit], failures: Failures, writer: FencedWriter) -> list[tuple[dict[str, Any], Jobs]]:
    """Return the jobs that are submitted together, with their resources; set aside runs that have none."""
    shapes: dict[str, list[Submit]] = defaultdict(list)
    kinds = job_request.Shapes()
    for action in actions:
        try:
            key, _ = kinds.of(action.config, mem_scale=action.mem_scale, exclude=action.exclude)
        except (OSError, ImportError):  # the environment's own files
            raise
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is this run's alone
            failures.aside.append(SetAside(action.run.id, in_words(exc), RunState.HELD))
            continue
        shapes[key].append(action)
    found = list[tuple[dict[str, Any], Jobs]]()
    for group in shapes.values():
        likely_s = _likely_s(group, writer)
        widths = job_request.jobs_by_width(group, group[0].config, lambda action: action.run, likely_s)
        for runs, alike in widths:
            first = alike[0][0]
            resources = job_request.resources(first.config, runs=runs, mem_scale=first.mem_scale, exclude=first.exclude)
            found += [(resources, alike[at : at + ARRAY_LIMIT]) for at in range(0, len(alike), ARRAY_LIMIT)]
    return found


def _likely_s(group: Sequence[Submit], writer: FencedWriter) -> list[float | None]:
    if group[0].config.slurm.runs_per_job != AUTO:
        return []
    runs = [action.run for action in group]
    with writer.store.read() as conn:
        saved = queries.saved_steps(conn, writer.campaign_id, [run.id for run in runs])
        known = _likely_times(conn, writer.campaign_id, runs, saved)
    return [known.get(run.id) for run in runs]


def write_intent(
    jobs: Sequence[Sequence[Submit]],
    token: str,
    writer: FencedWriter,
    paths: CampaignPaths,
    origin: Origin,
    *,
    shared: bool,
) -> list[Element]:
    """Record the attempts about to be submitted, job by job, so that the next pass knows which jobs to look for.

    Leaves out runs that the user has changed since the decision: the next pass decides again. `shared`: whether a job
    runs its attempts in turn.
    """
    with writer.write() as conn:
        now = bulk.run_marks(conn, writer.campaign_id, [action.run.id for job in jobs for action in job])
        unchanged = [[a for a in job if now.get(a.run.id) == bulk.mark_of(a.run)] for job in jobs]
        jobs = list(filter(None, unchanged))
        placed = [(action, (task, n)) for task, job in enumerate(jobs) for n, action in enumerate(job)]
        group, new = [action for action, _ in placed], list[NewAttempt]()
        for index, (action, place) in enumerate(placed):
            new.append(_new_attempt(action, index, token, paths, place if shared else (None, None)))
        rows = bulk.insert_attempts(conn, new)
        bulk.queue_runs(conn, token)
        again = [action.run.id for action in group if action.generation > 1]
        saved = queries.saved_steps(conn, writer.campaign_id, again)
        events = [_submitting(row, action) for row, action in zip(rows, group, strict=True)]
        queries.add_events(conn, writer.campaign_id, events)
        likely = _likely_times(conn, writer.campaign_id, [action.run for action in group], saved) if shared else {}
        campaign = queries.campaign_by_id(conn, writer.campaign_id)
        recorded_s = campaign.created_s if campaign else 0.0
        store = None if writer.store.is_sqlite else writer.store.url_without_password
        payloads = job_request.Payloads(paths, store=store, workdir=origin.workdir, python=origin.interpreter)

        def element(row: AttemptRow, action: Submit) -> Element:
            payload = payloads.of(
                action.run,
                config_changes.changed(action.config, action.changes),
                row.spool_path.rpartition("/")[0],
                generation=row.generation,
                micro_batch=action.micro_batch,
                token=row.token,
                attempt_id=row.id,
                min_resume_step=saved.get(row.run_id, 0),
                code=row.code,
                retry_epoch=row.retry_epoch,
                changes=row.changes,
                task=row.task,
                position=row.position,
                job_token=row.job_token or "",
                recorded_s=recorded_s,
                likely_s=likely.get(row.run_id),
            )
            return Element(row, action, payload)

        return [element(row, action) for row, action in zip(rows, group, strict=True)]


def _likely_times(
    conn: Connection, campaign_id: int, runs: Sequence[RunRow], saved: Mapping[int, int]
) -> dict[int, float]:
    """Return the likely durations of attempts by run id, as far as like runs have shown them; `saved`: their steps."""
    history = read_history(conn, campaign_id)

    def seconds_of(run: RunRow) -> float | None:
        steps = run.target_step and max(0, run.target_step - saved.get(run.id, 0))
        found = history.forecast(run.params, lambda: run.config, steps)
        return found and found.seconds

    return {run.id: seconds for run in runs if (seconds := seconds_of(run)) is not None}


def _submitting(row: AttemptRow, action: Submit) -> queries.NewEvent:
    micro = f" micro-batch {action.micro_batch}" if action.micro_batch else ""
    changes = f" with {' '.join(action.changes)}" if action.changes else ""
    exclude = f" without {', '.join(action.exclude)}" if action.exclude else ""
    message = f"attempt {row.generation}{micro}{changes}{exclude}: {action.why}"
    data = {"exclude": action.exclude} if action.exclude else None
    return queries.NewEvent(SUBMITTING, message, row.run_id, row.id, data)


def _new_attempt(
    action: Submit, index: int, token: str, paths: CampaignPaths, place: tuple[int | None, int | None]
) -> NewAttempt:
    config, world_size = action.config, action.config.world_size()
    (task, position), job_token = place, None
    if last := action.joins:
        (job_token, task), position = last.job_key, (last.position or 0) + 1
    return NewAttempt(
        run_id=action.run.id,
        generation=action.generation,
        token=token,
        config_hash=action.run.config_hash,
        micro_batch=action.micro_batch,
        accumulation=job_request.accumulation_of(config, action.micro_batch, world_size),
        world_size=world_size,
        nodes=config.nodes,
        executor=config.executor,
        spool_path=paths.spool(action.run.name, action.generation),
        retry_epoch=action.run.retry_epoch,
        array_index=index,
        task=task,
        position=position,
        job_token=job_token,
        changes=" ".join(action.changes),
        memory_key=memory_key(config_changes.changed(config, action.changes)),
        predicted_gb=action.predicted_gb,
        code=job_request.code_of(action.run, config),
    )
