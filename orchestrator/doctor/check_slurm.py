"""Ask Slurm about partitions, nodes and jobs, and judge a spec's requests by its answers, also before a submission."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from dscampaign.orchestrator.errors import Unreachable, UserError, did_you_mean
from dscampaign.orchestrator.executors import job_request
from dscampaign.orchestrator.executors.base import ArrayTooLarge, JobArray, SubmissionRefused, SubmissionUnclear
from dscampaign.orchestrator.executors.slurm import SlurmExecutor
from dscampaign.orchestrator.executors.slurm_commands import LOOK_S, OtherCluster, answering_within, ask
from dscampaign.orchestrator.formatting import count
from dscampaign.orchestrator.spec.expand import Run
from dscampaign.orchestrator.spec.slurm_section import SlurmConfig, parse_time_min

from .check import At, Check, Severity
from .requirements import Requirements, requirements_of

_SINFO: Final = "%P|%a|%l|%D|%T|%G|%m|%c|%b"
_OUT_OF_SERVICE: Final = ("down", "drain", "error", "fail", "inval", "maint", "unk")


@dataclass(frozen=True)
class Nodes:
    """Equal nodes of a partition: a line of sinfo."""

    partition: str
    default: bool = False
    state: str = "up"  # the partition's: up, down, drain or inact
    max_time_min: int | None = None  # longest time limit of a job; None for no limit
    count: int = 0
    in_service: bool = True  # whether Slurm starts jobs there, now or later
    memory_mb: int = 0
    # the resources that a job can request, in Slurm's terms: `gpu:h100:8, 1000000 MB, 96 cores, ib,nvlink`
    has: str = ""


def partitions() -> tuple[Nodes, ...]:
    """Return the nodes of every partition. Raises `Unreachable` if Slurm does not answer."""
    done = ask(["sinfo", "--all", "--noheader", "--exact", "-o", _SINFO])
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["failed"])[-1].removeprefix("sinfo: ")
        raise Unreachable(f"sinfo: {reason}")
    return tuple(_nodes(line) for line in done.stdout.splitlines() if line.count("|") == _SINFO.count("|"))


def _nodes(line: str) -> Nodes:
    partition, state, time, count, node_state, gres, memory_mb, cpus, features = line.split("|")
    parts = [re.sub(r"\([^)]*\)", "", gres), f"{memory_mb} MB", f"{cpus} cores", features.removesuffix("(null)")]
    return Nodes(
        partition.removesuffix("*"),
        default=partition.endswith("*"),
        state=state,
        max_time_min=parse_time_min(time) if time[:1].isdigit() else None,
        count=int(count),
        in_service=not node_state.endswith("*") and not node_state.startswith(_OUT_OF_SERVICE),
        memory_mb=int(memory_mb) if memory_mb.isdigit() else 0,
        has=", ".join(filter(None, parts)),
    )


_AT: Final = At("slurm")
_MIB_PER_GB: Final = 1e9 / 2**20
_NOT_AVAILABLE: Final = "node configuration is not available"


def cluster_checks(requirements: Sequence[Requirements]) -> Iterator[Check]:
    """Ask Slurm, and return verdicts on it and on a spec's requests to it."""
    try:
        cluster = partitions()
    except Unreachable as exc:
        hint = "is this a login node of a Slurm cluster? `executor: local` needs none"
        yield _AT.problem("slurm.controller", exc.message, hint, away=True)
        return
    yield _AT.ok("slurm.controller", "responding")
    yield from request_checks(cluster, requirements, [*map(forecast, requirements)])


def request_checks(
    cluster: Sequence[Nodes], requirements: Sequence[Requirements], forecasts: Sequence[str | Exception]
) -> Iterator[Check]:
    """Return verdicts on a spec's requests to a cluster, each with its forecast.

    `sbatch --test-only` checks a job's requests, but neither the partition's time limit and state nor the model.
    """
    for required, answer in zip(requirements, forecasts, strict=True):
        slurm = required.config.slurm
        if isinstance(answer, OtherCluster):
            yield _AT.problem("slurm.submit", answer.message, answer.hint or "")
            continue
        names = (slurm.partition or next((n.partition for n in cluster if n.default), "")).split(",")
        nodes = [n for n in cluster if n.partition in names]
        yield from (_partition(name, cluster, slurm) for name in names if name)
        if nodes:
            yield _nodes_check(nodes, required)
        if all(any(n.partition == name for n in cluster) for name in names if name):
            yield _submission(answer, required, nodes)  # else sbatch would only say the same once more


def _partition(name: str, cluster: Sequence[Nodes], slurm: SlurmConfig) -> Check:
    partitions = {nodes.partition: nodes for nodes in cluster}
    if name not in partitions:
        hint = did_you_mean(name, partitions, f"one of: {', '.join(partitions)}", cutoff=0.5)
        return _AT.problem("slurm.partition", f"no partition named {name}", hint)
    state, most_min = partitions[name].state, partitions[name].max_time_min
    if state != "up":
        text = f"{name} is {state}: it starts no jobs"
        return _AT.problem("slurm.partition", text, "wait, or choose another partition", away=True)
    if most_min is not None and slurm.time_min > most_min:
        text = f"{name} allows {most_min:,} min, slurm.time is {slurm.time_min:,} min: jobs would wait forever"
        hint = f"write `time: {most_min}`: a run resumes in a new job"
        if slurm.qos:
            return _AT.warning("slurm.partition", text, f"{hint}; or ask whether qos {slurm.qos} allows more")
        return _AT.problem("slurm.partition", text, hint)
    return _AT.ok("slurm.partition", f"{name} is up")


def _nodes_check(nodes: Sequence[Nodes], required: Requirements) -> Check:
    most_gb = max(group.memory_mb for group in nodes) / _MIB_PER_GB
    in_service = sum(group.count for group in nodes if group.in_service)
    if most_gb < required.host_gb:
        takes = f"the model needs {required.host_gb:,.0f} GB of a node's memory ({required.named})"
        hint = "use more nodes or fewer ranks on each, or offload less"
        return _AT.problem("slurm.nodes", f"{takes}, nodes have {most_gb:,.0f} GB", hint)
    if in_service < required.config.slurm.nodes:
        text = f"{required.config.slurm.nodes} requested, but only {in_service} in service"
        return _AT.warning("slurm.nodes", text, "`sinfo -R` shows why; jobs wait until they come back")
    return _AT.ok("slurm.nodes", _described(nodes))


def _described(nodes: Sequence[Nodes]) -> str:
    counts: Counter[tuple[str, str]] = Counter()
    for group in nodes:
        counts[group.partition, group.has] += group.count
    return "; ".join(f"{name}: {count(number, 'node')} ({has})" for (name, has), number in counts.items())


def _submission(forecast: str | Exception, required: Requirements, nodes: Sequence[Nodes]) -> Check:
    if isinstance(forecast, SubmissionRefused) and _NOT_AVAILABLE in str(forecast) and _may_come_back(nodes, required):
        text = f"{forecast} while nodes are out of service"
        return _AT.warning("slurm.submit", text, "`sinfo -R` shows why; jobs wait until they come back")
    if isinstance(forecast, SubmissionRefused):
        hint = f"change the `slurm` section ({required.named}); there is {_described(nodes) or 'no such partition'}"
        return _AT.problem("slurm.submit", f"sbatch would refuse: {forecast}", hint)
    if isinstance(forecast, Exception):
        return _AT.warning("slurm.submit", str(forecast), "try again")
    return _AT.ok("slurm.submit", forecast)


def _may_come_back(nodes: Sequence[Nodes], required: Requirements) -> bool:
    """Return whether nodes out of service may run the job: `--test-only` leaves them out, sbatch does not."""
    slurm, in_service = required.config.slurm, Counter[str]()
    for group in nodes:
        in_service[group.has] += group.count if group.in_service else 0
    away = [group for group in nodes if not group.in_service]
    is_needed = slurm.nodelist is not None or any(in_service[group.has] < slurm.nodes for group in away)
    return bool(away) and is_needed and sum(group.count for group in nodes) >= slurm.nodes


_START: Final = re.compile(r"\bto start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\b")
_T = TypeVar("_T")
_MOST_KINDS: Final = 8
"""Kinds of jobs that are asked about: each costs an sbatch."""


def forecast(required: Requirements) -> str | Exception:
    """Return when Slurm would start one kind of job, or why not."""
    token = job_request.new_token("campaign-doctor", ())
    with tempfile.TemporaryDirectory(prefix="campaign-doctor-") as folder:  # for its script
        try:
            resources = job_request.resources(required.config, runs=required.config.slurm.lanes)
            return SlurmExecutor().forecast(JobArray(token, Path(folder), 1, resources))
        except (SubmissionRefused, ArrayTooLarge, SubmissionUnclear, Unreachable) as exc:
            return exc


class Preflight:
    """Ask in the background from its making on; with `executor: local` nothing.

    A Slurm that does not answer in time refuses nothing: the pass after the submission reports that.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        shapes = job_request.Shapes()
        kinds = {shapes.of(run.config)[0]: run for run in reversed(runs) if run.config.executor == "slurm"}
        self._asked = requirements_of(list(kinds.values())[:_MOST_KINDS])
        self._pool = ThreadPoolExecutor(len(self._asked) + 1)
        self._nodes: Future[tuple[Nodes, ...]] | None = self._start(partitions) if self._asked else None
        self._forecasts = [self._start(partial(forecast, required)) for required in self._asked]

    def require_accepted(self, outcome: str = "nothing was submitted") -> None:
        """Raise UserError with every job that Slurm would never run."""
        try:
            cluster = self._nodes.result() if self._nodes else ()
        except Unreachable:
            return
        if not cluster:
            return
        forecasts = [future.result() for future in self._forecasts]
        certain, checks = ("slurm.partition", "slurm.submit"), request_checks(cluster, self._asked, forecasts)
        if wrong := [c for c in checks if c.id in certain and c.verdict is Severity.PROBLEM and not c.away]:
            problems = "; ".join(dict.fromkeys(check.seen for check in wrong))
            hints = dict.fromkeys(check.next for check in wrong if check.next)
            raise UserError(f"{outcome}: {problems}", "; ".join(hints))

    def first_start_s(self) -> float | None:
        """Return when Slurm expects to start a job first, in epoch seconds; None if it does not say."""
        answers = [answer for future in self._forecasts if isinstance(answer := future.result(), str)]
        starts = [match[1] for answer in answers if (match := _START.search(answer))]
        return min((datetime.fromisoformat(start).timestamp() for start in starts), default=None)

    def _start(self, ask: Callable[[], _T]) -> Future[_T]:
        def briefly() -> _T:
            with answering_within(LOOK_S):
                return ask()

        return self._pool.submit(briefly)
