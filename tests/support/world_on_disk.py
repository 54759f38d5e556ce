"""A campaign of scripts in a SQLite store, and a cluster in memory that the test plays."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dscampaign.db import metrics, queries
from dscampaign.db.records import AttemptRow, CampaignRow, EventRow, RunRow
from dscampaign.db.schema import lease
from dscampaign.db.store import Store
from dscampaign.files.atomic_files import create_exclusively
from dscampaign.files.private_files import make_below
from dscampaign.jobs.agent.evidence import NodeOutcome, RankEnd
from dscampaign.jobs.shared import spool_steps
from dscampaign.jobs.shared.job_array import is_closed
from dscampaign.jobs.shared.layout import AttemptPaths, CampaignPaths
from dscampaign.jobs.shared.payload import Payload
from dscampaign.orchestrator.campaign import desired as campaigns
from dscampaign.orchestrator.campaign.submission import Submission
from dscampaign.orchestrator.executors.base import JobArray, JobListing, JobView, WaitedJob
from dscampaign.orchestrator.reconcile.loop import Pass, Reconciler
from dscampaign.orchestrator.reconcile.search import Measure
from dscampaign.tests.support.attempt import submitted_payload
from dscampaign.tests.support.spec_files import load_runs

SPEC: dict[str, Any] = {
    "name": "c",
    "slurm": {"gpus_per_node": 0, "mem": "1G", "time": "5"},
    "ranks_per_node": 1,
    "retry": {"backoff_s": 0},
    "command": ["train.py", "{depth}"],
    "train": {"steps": 3},
    "matrix": {"depth": [1, 2]},
}


class Cluster:
    """An executor that takes everything and shows what it took; ``submit`` and ``list_jobs`` can be made to fail."""

    intent_grace_s = 0.0
    lost_grace_s = 0.0
    outcome_grace_s = 0.0
    user = 0

    def __init__(self) -> None:
        self.jobs: dict[tuple[str, int], JobView] = {}  # by (token, index)
        self.submitted: list[JobArray] = []  # every batch that was really taken
        self.cancelled: list[str] = []
        self.on_submit: Callable[[JobArray], None] = lambda _: None  # before it is taken; the caller sees its errors
        self.after_submit: Callable[[JobArray], None] = lambda _: None
        self.on_look: Callable[[], None] = lambda: None  # called before each look
        self.complete = True  # whether a look finds out everything
        self.waited: list[WaitedJob] = []  # of the last look
        self.rivals: dict[tuple[str, int], list[JobView]] = {}  # attempts with several jobs
        self.name = ""

    def submit(self, batch: JobArray) -> list[str]:
        self.on_submit(batch)
        number = len(self.submitted) + 1
        self.submitted.append(batch)
        for index in range(batch.size):
            assert submitted_payload(batch.folder, index), "submitted before its payload was there"
            self.jobs[batch.token, index] = JobView(batch.token, index, f"{number}_{index}", "PENDING")
        self.after_submit(batch)
        return [f"{number}_{index}" for index in range(batch.size)]

    def list_jobs(
        self,
        expected: Mapping[str, Collection[int]],
        since_s: float,  # noqa: ARG002
        waited: Iterable[WaitedJob] = (),
    ) -> JobListing:
        self.on_look()
        self.waited = list(waited)
        wanted = {(token, index) for token, indexes in expected.items() for index in indexes}
        shown = {key: view for key, view in self.jobs.items() if key in wanted and key not in self.rivals}
        return JobListing(shown, self.complete, self.rivals)

    def cluster(self) -> str:
        return self.name

    def nodes(self) -> int | None:
        return None

    def cancel(self, job_ids: Sequence[str]) -> None:
        self.cancelled += job_ids
        for key, view in self.jobs.items():
            if view.job_id in job_ids:
                self.jobs[key] = view._replace(state="CANCELLED")

    def payloads(self) -> list[Payload]:
        """What the jobs that wait are to run, in the order of their submission."""
        batches = {batch.token: batch for batch in self.submitted}
        waiting = [key for key, view in self.jobs.items() if view.state == "PENDING"]
        return [submitted_payload(batches[token].folder, index) for token, index in waiting]


@dataclass
class World:
    """A store, a shared folder and a cluster; `name` is the campaign whose jobs it plays, `measure` is for a search."""

    folder: Path
    store: Store
    cluster: Cluster = field(default_factory=Cluster)
    ran: list[tuple[str, int]] = field(default_factory=list)
    name: str = "c"
    measure: Measure | None = None

    @property
    def paths(self) -> CampaignPaths:
        return CampaignPaths(self.folder, self.name)

    def submission(self, **changes: Any) -> Submission:
        """The spec, with these fields replaced."""
        path = self.folder / "spec.yaml"
        path.write_text(json.dumps({**SPEC, **changes}))
        (self.folder / "train.py").touch()
        (self.folder / "train.py").chmod(0o644)
        spec, runs = load_runs(path)
        return Submission(spec, path.read_text(), runs, self.folder, path)

    def record(self, **changes: Any) -> CampaignRow:
        return campaigns.record(self.store, self.submission(**changes))

    @property
    def campaign(self) -> CampaignRow:
        with self.store.read() as conn:
            [row] = queries.list_campaigns(conn)
        return row

    def reconciler(self) -> Reconciler:
        return Reconciler(self.store, self.campaign, self.cluster, self.measure)

    def run_pass(self) -> Pass:
        """One pass of a reconciler that then goes away properly."""
        reconciler = self.reconciler()
        try:
            return reconciler.run_pass()
        finally:
            reconciler.close()

    def settle(self, passes: int = 12, **ending: Any) -> Pass:
        """Make passes, with jobs that run in between, until all is settled."""
        for _ in range(passes):
            done = self.run_pass()
            if done.settled:
                return done
            self.run_jobs(**ending)
        raise AssertionError(self.states(), [str(trouble) for trouble in done.troubles])

    def runs(self) -> dict[str, RunRow]:
        with self.store.read() as conn:
            return {run.name: run for run in queries.runs(conn, self.campaign.id)}

    def states(self) -> dict[str, str]:
        return {name: str(run.state) for name, run in self.runs().items()}

    def attempts(self, name: str) -> list[AttemptRow]:
        with self.store.read() as conn:
            return queries.attempts(conn, self.campaign.id, self.runs()[name].id)

    def events(self, kind: str) -> list[EventRow]:
        with self.store.read() as conn:
            return [event for event in queries.events(conn, self.campaign.id) if event.kind == kind]

    def steps(self, name: str) -> list[int]:
        with self.store.read() as conn:
            return [row.step for row in metrics.metrics(conn, self.runs()[name].id)]

    def expire_lease(self) -> None:
        """As if a dead holder's time were over."""
        with self.store.write() as conn:
            conn.execute(lease.update().values(expires_s=0.0))

    def run_jobs(
        self,
        state: str = "COMPLETED",
        *,
        exit_code: int | None = 0,
        error: str = "",
        loss: float | None = 1.0,
        ended_by: str = "",
    ) -> None:
        """Plays the agents of all jobs that wait: claims what is not taken or closed, reports three steps, ends.

        A rank without an `exit_code` was ended by a signal, without a `loss` it makes no step.
        """
        for key, view in list(self.cluster.jobs.items()):
            if view.state == "PENDING" and self.paths.batch(view.token).exists():
                self.cluster.jobs[key] = view._replace(state=state)
                self._run_job(view, exit_code, error, () if loss is None else (loss,) * 3, ended_by)

    def _run_job(
        self, view: JobView, exit_code: int | None, error: str, losses: Sequence[float], ended_by: str
    ) -> None:
        payload = submitted_payload(self.paths.batch(view.token), view.task)
        files = AttemptPaths(Path(payload.attempt_dir))
        make_below(self.paths.runs, files.dir)
        claimed = create_exclusively(files.claim, json.dumps({"job_id": view.job_id}))
        if not claimed or is_closed(self.paths.batch(view.token), view.task):
            return
        self.ran.append((payload.run, payload.generation))
        with files.metrics.open("a") as spool:
            lines = ({"step": step, "ts": 1.0, "loss": loss} for step, loss in enumerate(losses, 1))
            spool.writelines(json.dumps(line) + "\n" for line in lines)
        raised = {"type": "builtins.RuntimeError", "message": error, "trace": [], "ts": 1.0} if error else None
        outcome = NodeOutcome(
            generation=payload.generation,
            job_id=view.job_id,
            node_rank=0,
            host="n0",
            launcher_exit=1 if exit_code is None else exit_code,
            ended_by=ended_by,
            started_s=100.0,
            ended_s=160.0,
            start_step=0,
            last_step=len(losses) or None,
            ranks=(RankEnd(0, exit_code, raised),),
            diverged_at=spool_steps.diverged_at(files.metrics),
        )
        outcome.write(files.outcome(0))


def make_world(folder: Path) -> World:
    """An empty store and an idle cluster."""
    return World(folder, Store.open(f"sqlite:///{folder}/campaign.db", create=True))


@contextmanager
def queued_world(folder: Path) -> Iterator[World]:
    """One run with one attempt that waits in the queue."""
    made = make_world(folder)
    made.record(matrix={"depth": [1]})
    made.run_pass()
    yield made
    made.store.close()
