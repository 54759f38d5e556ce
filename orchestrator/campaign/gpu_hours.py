"""The GPU-hours of jobs that are to be submitted to Slurm. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dscampaign.db.records import RunRow
from dscampaign.orchestrator.executors import job_request
from dscampaign.orchestrator.reconcile.forecast import Forecast
from dscampaign.orchestrator.spec.expand import Run
from dscampaign.orchestrator.spec.model import RunConfig


class ToRun(NamedTuple):
    """An attempt to submit, with its likely duration if that is known."""

    run: Run | RunRow
    config: RunConfig
    mem_scale: float = 1.0
    likely: Forecast | None = None


Jobs = Sequence[Sequence[ToRun]]  # the attempts of each job


@dataclass(frozen=True)
class GpuHours:
    """The GPU-hours of jobs."""

    most: float = 0.0  # as much as their time limits allow
    likely: float | None = None  # None if no run has a forecast. A job with runs without one counts with its limit.

    @property
    def expected(self) -> float:
        """The likely hours, else the most."""
        return self.most if self.likely is None else self.likely

    def __add__(self, other: GpuHours) -> GpuHours:
        """Return the sum."""
        unknown = self.likely is None and other.likely is None
        return GpuHours(self.most + other.most, None if unknown else self.expected + other.expected)


def jobs_of(attempts: Iterable[ToRun]) -> list[Jobs]:
    """Return the jobs that would run these attempts, by their resources."""
    shapes, alike = job_request.Shapes(), defaultdict[str, list[ToRun]](list)
    for attempt in attempts:
        alike[shapes.of(attempt.config, mem_scale=attempt.mem_scale)[0]].append(attempt)
    jobs_of_all: list[Jobs] = []
    for group in alike.values():
        likely_s = (one.likely and one.likely.seconds for one in group)
        widths = job_request.jobs_by_width(group, group[0].config, lambda one: one.run, likely_s)
        jobs_of_all += [jobs for _, jobs in widths]
    return jobs_of_all


def hours_of(shapes: Iterable[Jobs]) -> GpuHours:
    """Return the GPU-hours of jobs: each has one time limit, however many runs it runs."""
    return sum((_hours_of_job(job) for jobs in shapes for job in jobs), GpuHours())


def _hours_of_job(job: Sequence[ToRun]) -> GpuHours:
    slurm, likely = job[0].config.slurm, [attempt.likely.seconds for attempt in job if attempt.likely]
    width = job_request.width(job, job[0].config)
    most = width * slurm.nodes * slurm.gpus * slurm.time_min / 60
    if len(likely) < len(job):
        return GpuHours(most, most if likely else None)
    lasts_h = max(*likely, sum(likely) / width) / 3600
    return GpuHours(most, width * slurm.nodes * slurm.gpus * lasts_h)
