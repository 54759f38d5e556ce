"""An executor in memory that does what Slurm does on a bad day, with jobs whose agents write real files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import TypeVar

from dscampaign.files.private_files import open_regular
from dscampaign.jobs.agent.evidence import EXIT_NOT_MINE
from dscampaign.jobs.agent.node import Node
from dscampaign.jobs.agent.shared_job import AttemptQueue, joining
from dscampaign.jobs.shared.job_array import read_array
from dscampaign.jobs.shared.layout import payloads_file
from dscampaign.jobs.shared.payload import Payload
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors.base import (
    LIVE_PENDING,
    TERMINAL_STATES,
    JobArray,
    JobListing,
    JobView,
    SubmissionRefused,
    SubmissionUnclear,
    WaitedJob,
)
from dscampaign.orchestrator.executors.job_listing import SINCE_SLACK_S, Key, cancelled
from dscampaign.orchestrator.executors.slurm import SlurmExecutor
from dscampaign.orchestrator.reconcile.shared_jobs import WITH_JOB_S
from dscampaign.tests.simulation.accidents import Effects
from dscampaign.tests.simulation.clock import Clock
from dscampaign.tests.simulation.fake_agent import FakeAgent
from dscampaign.tests.simulation.fates import COMPLETES, FATES, GUESSES, VANISHES, Fate
from dscampaign.tests.support.attempt import submitted_payload

_T = TypeVar("_T")

MIN_JOB_AGE_S = 300.0
"""After which Slurm without accounting forgets a job that is over."""

BY_ITSELF = ("COMPLETED", "FAILED")
"""How Slurm calls the end of a job that nobody else ended."""

SUBMISSIONS = (
    "taken",
    "taken, no answer",
    "taken late, no answer",
    "taken twice, no answer",
    "dropped, no answer",
    "unreachable",
    "refused",
)
LOOKS = ("good", "stale", "older", "incomplete", "unreachable")


@dataclass
class Part:
    """One attempt of a job.

    Attributes:
        index: its place in the payloads of the array.
        classes: what it may be called in the end.
        unsaid: how it ended, while its agents have not yet written that down.
    """

    index: int
    payload: Payload
    agents: list[FakeAgent] = field(default_factory=list)
    classes: set[str] = field(default_factory=set)
    blind: set[str] = field(default_factory=lambda: set(GUESSES))
    unsaid: Fate | None = None
    queue: AttemptQueue | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Its submission, and its place there."""
        return self.payload.token, self.index

    @property
    def name(self) -> tuple[str, int]:
        """The attempt."""
        return self.payload.run, self.payload.generation


@dataclass
class Job:
    """One element of an array.

    Attributes:
        parts: the attempts that it is to run.
        part: that which is looked at: one that it runs, or the first.
        lanes: how many it runs at a time; `lane`: those that it runs.
        queues: what chooses the next, where it runs several; `joining` finds more; `ending`: it begins no more.
        visible_s: before, no look shows it.
    """

    token: str
    index: int
    job_id: str
    parts: list[Part]
    part: Part
    folder: Path
    submit_time_s: float
    visible_s: float
    state: str = "PENDING"
    started_s: float | None = None
    ended_s: float | None = None
    step_out_of_memory: bool = False
    forgotten: bool = False
    shown: list[JobView] = field(default_factory=list)
    queues: list[AttemptQueue] = field(default_factory=list)
    joining: Callable[[], list[AttemptQueue]] | None = None
    lanes: int = 1
    lane: list[Part] = field(default_factory=list)
    ending: bool = False

    @property
    def payload(self) -> Payload:
        """Of the attempt that it runs."""
        return self.part.payload

    @property
    def agents(self) -> list[FakeAgent]:
        """Of the attempt that it runs."""
        return self.part.agents

    @property
    def shared(self) -> bool:
        """Whether it runs several."""
        return self.payload.task is not None

    def of(self, token: str, index: int) -> Part | None:
        """The attempt with that place in a submission; None if the job has not noticed it."""
        return next((part for part in self.parts if part.key == (token, index)), None)

    @property
    def live(self) -> bool:
        """Whether Slurm takes it for one that is not over."""
        return self.state not in TERMINAL_STATES and not self.forgotten

    @property
    def training(self) -> bool:
        """Whether its processes run, whatever Slurm thinks."""
        return bool(self.trained)

    @property
    def trained(self) -> list[Part]:
        """The attempts whose processes run."""
        return [part for part in self.parts if any(agent.alive for agent in part.agents)]

    @property
    def name(self) -> tuple[str, int]:
        """The attempt that it runs."""
        return self.part.name

    def becomes(self, state: str, **values: object) -> None:
        """Takes a new state, and remembers how the old one looked."""
        self.shown.append(self.view())
        self.state = state
        for name, value in values.items():
            setattr(self, name, value)

    def view(self) -> JobView:
        """What Slurm says of it now."""
        times = self.submit_time_s, self.started_s, self.ended_s
        nodes = "n0" if self.started_s else ""
        return JobView(self.token, self.index, self.job_id, self.state, "", *times, "", nodes, self.step_out_of_memory)


class NastySlurm:
    """The cluster.

    Attributes:
        accounting: whether it remembers jobs for ever.
        sbatch: what becomes of the next submission, one of SUBMISSIONS; then all is well again.
        squeue: how the next look is, one of LOOKS; likewise.
        jobs: all that it ever took, in the order of submission.
        refused: tokens that it would not take.
        executions: which jobs have claimed an attempt, by (run, generation).
        cancelled: runs of which a job was cancelled by the program.
    """

    intent_grace_s = SlurmExecutor.intent_grace_s
    lost_grace_s = SlurmExecutor.lost_grace_s
    outcome_grace_s = SlurmExecutor.outcome_grace_s
    user = 0

    def __init__(self, clock: Clock, effects: Effects, accounting: bool) -> None:
        self._clock, self._effects, self.accounting = clock, effects, accounting
        self.sbatch, self.squeue = "taken", "good"
        self.jobs: list[Job] = []
        self.refused: set[str] = set()
        self.executions: dict[tuple[str, int], list[Job]] = {}
        self.cancelled: set[str] = set()
        self._next_id = 1

    # -- what the reconciler sees --------------------------------------------------------------------------------

    def submit(self, batch: JobArray) -> list[str]:
        self._effects.moment(Unreachable("sbatch is away"))
        assert batch.token not in {job.token for job in self.jobs}, "one token was submitted twice"
        how, self.sbatch = self.sbatch, "taken"
        if how == "unreachable":
            raise Unreachable("sbatch is away")
        if how == "refused":
            self.refused.add(batch.token)
            raise SubmissionRefused("invalid partition")
        ids = [] if how.startswith("dropped") else self._take(batch, 200.0 if "late" in how else 0.0)
        if "twice" in how:  # a request that was sent again to a backup controller
            self._take(batch, 0.0)
        self._effects.moment(SubmissionUnclear("Socket timed out"))
        if how.endswith("no answer"):
            raise SubmissionUnclear("Socket timed out")
        return ids

    def list_jobs(
        self, expected: Mapping[str, Collection[int]], since_s: float, waited: Iterable[WaitedJob] = ()
    ) -> JobListing:
        self._effects.moment(Unreachable("squeue is away"))
        how, self.squeue = self.squeue, "good"
        if how == "unreachable":
            raise Unreachable("squeue is away")
        found: dict[tuple[str, int], JobView] = {}
        rivals: dict[tuple[str, int], list[JobView]] = {}
        for key in ((token, index) for token, indexes in expected.items() for index in indexes):
            jobs = self.named(*key)
            shown = [self._shown(job, how, since_s) for job in jobs]
            views = [view for view in shown if view]
            if len(views) > 1:
                rivals[key] = views
            elif views:
                [found[key]] = views
            for job, view in zip(jobs, shown, strict=True):
                if len(views) != 1 or view is None:  # of two, the one that runs it may not be the one that is judged
                    for part in job.parts:
                        part.classes |= part.blind | {"lost"}
        if how == "good":
            recent_s = self._clock.slurm_s() - MIN_JOB_AGE_S
            in_queue = [view for view in found.values() if view.ended_s is None or view.ended_s > recent_s]
            found |= self._cancelled(waited, found.keys() | rivals.keys(), in_queue)
        self._effects.moment(Unreachable("squeue is away"))
        return JobListing(found, how != "incomplete", rivals)

    def _cancelled(
        self, waited: Iterable[WaitedJob], known: Collection[Key], shown: Collection[JobView]
    ) -> dict[Key, JobView]:
        """What `SlurmExecutor` takes for cancelled in the queue, by its own rule."""
        absent = {(job.token, job.index) for job in self.jobs} - set(known)
        began = {(job.token, job.index) for job in self.jobs if job.started_s}
        unrecorded = absent - began if self.accounting else set()
        views = cancelled(waited, absent, unrecorded, shown, lambda: MIN_JOB_AGE_S, self._tasks_of)
        return {key: view for key, [view] in ((key, list(found.values())) for key, found in views.items())}

    def _tasks_of(self, array: str) -> set[int]:
        """What the controller names of an array."""
        return {job.index for job in self.jobs if job.job_id.partition("_")[0] == array and not job.forgotten}

    def cancel(self, job_ids: Sequence[str]) -> None:
        self._effects.moment(Unreachable("scancel is away"))
        for job_id in job_ids:
            # a number that is used again means the newest job
            named = [job for job in self.jobs if job.job_id == job_id and not job.forgotten]
            for job in named[-1:]:
                if job.live:
                    ended = (part.queue.record.ended if part.queue else () for part in job.parts)
                    parts = zip(job.parts, ended, strict=True)
                    self.cancelled |= {part.payload.run for part, done in parts if part.index not in done}
                    waits = job.state in LIVE_PENDING
                    with self._effects.elsewhere():  # its agents write how they ended
                        self.end(job, FATES["is cancelled by somebody"])
                    job.forgotten = waits  # a task that is cancelled alone in the queue leaves no trace
        self._effects.moment(Unreachable("scancel is away"))

    def cluster(self) -> str:
        return "dev"

    def nodes(self) -> int | None:
        return 8

    # -- what the test does --------------------------------------------------------------------------------------

    def named(self, token: str, index: int) -> list[Job]:
        """The jobs of that token: none, one, or two of a batch that was taken twice."""
        return [job for job in self.jobs if (job.token, job.index) == (token, index)]

    def pending(self) -> list[Job]:
        """The jobs that wait."""
        return [job for job in self.jobs if job.live and job.state in LIVE_PENDING]

    def running(self) -> list[Job]:
        """The jobs that Slurm takes for running."""
        return [job for job in self.jobs if job.live and job.state not in LIVE_PENDING]

    def training(self) -> list[Job]:
        """The jobs whose processes run."""
        return [job for job in self.jobs if job.training]

    def silent(self) -> list[Job]:
        """The jobs that are over and whose agents have not yet said how."""
        return [job for job in self.jobs if any(part.unsaid for part in job.parts)]

    def start(self, job: Job) -> None:
        """Its nodes begin: the first one claims the attempt."""
        now_s = self._clock.slurm_s()
        job.becomes("RUNNING", started_s=now_s)
        if job.shared:
            attempts = {part.index: vars(part.payload) for part in job.parts}
            job.queues = [AttemptQueue(job.folder, job.job_id, attempts, lambda: inf)]
            job.joining = joining(job.queues[0], job.index)
            for part in job.parts:
                part.queue = job.queues[0]
            for _ in range(job.lanes):
                self._begin_next(job)
        elif not self._begin(job):
            job.becomes("FAILED", ended_s=now_s)  # as the agent's exit code makes it
            job.part.classes.add("lost")

    def _begin(self, job: Job) -> bool:
        nodes = (Node(job.job_id, rank, f"n{rank}", "") for rank in range(job.payload.nodes))
        job.part.agents = [FakeAgent(job.payload, node, self._clock.node_s(), job.part.index) for node in nodes]
        first, *_ = [agent.begin() for agent in job.agents]
        if first:
            self.executions.setdefault(job.name, []).append(job)
        return first

    def _begin_next(self, job: Job) -> None:
        """The next of several that nobody has, if there is one."""
        while job.live and not job.ending and (part := self._next(job)) is not None:
            job.part = part
            if self._begin(job):
                job.lane.append(job.part)
                return
            assert part.queue is not None
            part.queue.ended(part.index, EXIT_NOT_MINE, 1.0, self._clock.node_s())
        if job.live and not job.lane:
            state = "FAILED" if job.ending else "COMPLETED"
            job.becomes(state, ended_s=self._clock.slurm_s())
            self._leave_rest(job, state)

    def _next(self, job: Job) -> Part | None:
        for queue in job.queues:
            if (index := queue.next()) is not None:
                return job.of(queue.batch.name, index)
        assert job.joining is not None
        more = job.joining()
        job.queues += more
        for queue in more:
            job.parts.append(Part(0, submitted_payload(queue.batch, 0), queue=queue))
        return self._next(job) if more else None

    def _end_step(self, job: Job, fate: Fate) -> None:
        """One of several ends by itself: the job goes on."""
        queue = job.part.queue
        assert queue is not None
        job.lane.remove(job.part)
        job.part.classes |= fate.classes
        job.part.blind = set(fate.blind)
        if fate.saves and job.agents[0].finished:
            job.part.classes |= COMPLETES.classes
        for agent in job.agents:
            if fate.word:
                agent.end(fate)
            else:
                agent.die()
        exit_code, oom = 0 if fate.exit == 0 else 1, fate.step_out_of_memory
        if oom or not job.ending:
            ended = queue.ended(job.part.index, exit_code, 1.0, self._clock.node_s(), out_of_memory=oom)
            job.ending |= not ended
        self._begin_next(job)

    def _leave_rest(self, job: Job, state: str) -> None:
        """What a job that is over has not begun."""
        for part in job.parts:
            if part not in job.trained and (part is not job.part or not part.agents):
                part.classes |= {"returned", *({"cancelled"} if state == "CANCELLED" else ())}

    def work(self, job: Job, steps: int = 1) -> None:
        """Its agents look around; its training makes steps, if it may."""
        if job.live and job.shared and len(job.lane) < job.lanes:
            self._begin_next(job)
        for part in job.trained:
            job.part = part
            self._work(job, steps)

    def _work(self, job: Job, steps: int) -> None:
        for _ in range(steps):
            agents = [agent for agent in job.agents if agent.alive]
            if not agents:
                return
            if any(agent.superseded for agent in agents):
                if job.live and job.shared:
                    self._end_step(job, Fate("", frozenset(), ended_by="superseded"))
                    return
                for agent in agents:
                    agent.give_way()
                if job.live:
                    self._over(job, Fate("FAILED", frozenset()))
                return
            if job.live and job.part.queue and job.part.queue.is_closed(job.part.index):
                self._end_step(job, FATES["is cancelled by somebody"])
                return
            self._check_alone(job)
            for agent in agents:
                agent.watch()
                if not agent.finished:
                    agent.train()

    def end(self, job: Job, fate: Fate, *, late: bool = False, which: int = 0) -> None:
        """It ends, or one of several that it runs.

        Args:
            late: the agents' word is written only after Slurm has shown the end, see `say`.
            which: of those that it runs.
        """
        for part in every(job.trained, which):
            job.part = part
            if fate.reaches:
                self._work(job, max(0, (job.payload.target_step or 0) - job.agents[0].step))
            if part not in job.trained:
                return  # it had to give way
        if fate.reaches and not job.training:
            return
        if job.live and job.shared and job.training and fate.state in BY_ITSELF:
            self._end_step(job, fate)
            return
        self._over(job, fate)
        self._blur(job, fate)
        for part in job.trained:
            # the end of the job reaches the step before its agents say so; what kills them at once kills the queue, too
            if late and part.queue and fate.word:
                part.queue.ended(part.index, 0, 1.0, self._clock.node_s())
                if abs(self._clock.node_s() - self._clock.slurm_s()) > WITH_JOB_S:
                    part.classes |= {"crash"}  # the clocks hide that both ended together
            self._end_part(part, fate, GUESSES if late else frozenset())
        if not late:
            self.say(job)

    def _blur(self, job: Job, fate: Fate) -> None:
        """Allow the end of the job for a step just before, unless an outcome or a later step shows that it went on."""
        for part in job.parts:
            end = part.queue and part.queue.record.ended.get(part.index)
            said = any(agent.paths.outcome(agent.node.rank).exists() for agent in part.agents)
            if part.queue and end and not said and end.begun == len(part.queue.record.begun):
                near = abs(self._clock.slurm_s() - end.ended_s) < WITH_JOB_S
                part.classes |= fate.classes if near else set()

    def _end_part(self, part: Part, fate: Fate, guesses: frozenset[str]) -> None:
        if fate.zombie:
            part.classes |= COMPLETES.classes
        elif not fate.word:
            for agent in part.agents:
                agent.die()
        else:
            part.unsaid = fate
            part.classes |= guesses

    def say(self, job: Job) -> None:
        """The agents of a job that is over write down how it ended."""
        for part in job.parts:
            fate, part.unsaid = part.unsaid, None
            for agent in part.agents:
                if fate and agent.alive:
                    agent.end(fate)

    def lose_state(self, *, zombies: bool) -> None:
        """Slurm's state directory is lost: nobody knows the jobs any more, and their numbers are given out again."""
        self._next_id = 1
        for job in self.jobs:
            if job.live or job.training:
                self._over(job, VANISHES)
                for part in job.trained or [job.part]:
                    part.classes |= COMPLETES.classes if zombies else set()
            job.forgotten = True
            for agent in (agent for part in job.trained for agent in part.agents):
                if agent.alive and not zombies:
                    agent.die()

    def finish_all(self) -> None:
        """All that waits begins, and all that runs completes, unless it has to give way."""
        for job in self.pending():
            self.start(job)
        for job in list(self.jobs):
            self.say(job)
            for _ in job.parts:
                if job.live:
                    self.end(job, COMPLETES)
            if not job.live and job.training:
                self.work(job, (job.payload.target_step or 0) + 1)
                for agent in (agent for part in job.trained for agent in part.agents):
                    if agent.alive:
                        agent.end(COMPLETES)

    # -- helpers -------------------------------------------------------------------------------------------------

    def _take(self, batch: JobArray, delay_s: float) -> list[str]:
        number, self._next_id = self._next_id, self._next_id + 1
        path = payloads_file(batch.folder)
        of_task: dict[int, list[Part]] = {}
        for index, _ in enumerate(read_array(open_regular(path), path)):
            payload = submitted_payload(batch.folder, index)
            of_task.setdefault(index if payload.task is None else payload.task, []).append(Part(index, payload))
        assert sorted(of_task) == list(range(batch.size))
        times = self._clock.slurm_s(), self._clock.now_s + delay_s
        for task, parts in of_task.items():
            job = Job(batch.token, task, f"{number}_{task}", parts, parts[0], batch.folder, *times)
            self.jobs.append(replace(job, lanes=batch.lanes))
        return [f"{number}_{index}" for index in range(batch.size)]

    def _over(self, job: Job, fate: Fate) -> None:
        now_s = self._clock.slurm_s()
        job.becomes(fate.state or job.state, ended_s=now_s, step_out_of_memory=fate.step_out_of_memory)
        before = any(end.out_of_memory for queue in job.queues for end in queue.record.ended.values())
        for part in job.trained or [job.part]:
            part.classes |= fate.classes
            part.classes |= {"crash"} if before and fate.state == "OUT_OF_MEMORY" else set()  # for all that Slurm shows
            part.blind = set(fate.blind)
        if job.shared:
            self._leave_rest(job, fate.state)
            if not job.started_s:
                for part in job.parts:
                    part.classes |= fate.classes
        for part in job.trained:
            if fate.saves and part.agents[0].finished:
                part.classes |= COMPLETES.classes

    def _shown(self, job: Job, how: str, since_s: float) -> JobView | None:
        if job.ended_s and not self.accounting and self._clock.slurm_s() - job.ended_s > MIN_JOB_AGE_S:
            job.forgotten = True
        too_old = job.submit_time_s < since_s - SINCE_SLACK_S
        if job.forgotten or too_old or self._clock.now_s < job.visible_s:
            return None
        if how == "incomplete" and not job.live:
            return None
        views = [None, *job.shown, job.view()]
        back = {"stale": 1, "older": 2}.get(how, 0)
        return views[max(0, len(views) - 1 - back)]

    def _check_alone(self, job: Job) -> None:
        """A job may train only while no newer attempt of its run has begun."""
        run, generation = job.name
        newer = [g for r, g in self.executions if r == run and g > generation]
        assert not newer, f"{run}: generation {generation} trains on beside generation {newer}"


def every(things: Sequence[_T], which: int) -> Iterator[_T]:
    """The one of that number, counted round; none if there is none."""
    if things:
        yield things[which % len(things)]
