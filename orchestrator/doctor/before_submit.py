"""Ask Slurm, while the plan is made and before anything is recorded, whether it would refuse the jobs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from dscampaign.orchestrator.errors import Unreachable, UserError
from dscampaign.orchestrator.executors import job_request
from dscampaign.orchestrator.executors.slurm_commands import LOOK_S, answering_within
from dscampaign.orchestrator.spec.expand import Run

from .check import Check, Severity
from .check_slurm import slurm_checks
from .cluster import Cluster, Nodes, partitions
from .requirements import Requirements, requirements_of
from .run import forecast

_T = TypeVar("_T")
_MOST_KINDS: Final = 8
"""Kinds of jobs that are asked about: each costs an sbatch."""


class Preflight:
    """Ask in the background from its making on; with `executor: local` nothing.

    A Slurm that does not answer in time refuses nothing: the pass after the submission reports that.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        shapes = job_request.Shapes()
        kinds = {shapes.of(run.config)[0]: run for run in reversed(runs) if _on_slurm(run)}
        self._asked = requirements_of(list(kinds.values())[:_MOST_KINDS])
        self._pool = ThreadPoolExecutor(len(self._asked) + 1)
        self._nodes: Future[tuple[Nodes, ...]] | None = self._start(partitions) if self._asked else None
        self._forecasts = [self._start(partial(_forecast, required)) for required in self._asked]

    def require_accepted(self, outcome: str = "nothing was submitted") -> None:
        """Raise UserError with every job that Slurm would never run."""
        try:
            cluster = Cluster(nodes=self._nodes.result()) if self._nodes else Cluster()
        except Unreachable:
            return
        if not cluster.nodes:
            return
        said = [future.result() for future in self._forecasts]
        wrong = [check for check in slurm_checks(cluster, self._asked, said) if _refuses(check)]
        if wrong:
            seen = "; ".join(dict.fromkeys(check.seen for check in wrong))
            hints = dict.fromkeys(check.next for check in wrong if check.next)
            raise UserError(f"{outcome}: {seen}", "; ".join(hints))

    def _start(self, ask: Callable[[], _T]) -> Future[_T]:
        def briefly() -> _T:
            with answering_within(LOOK_S):
                return ask()

        return self._pool.submit(briefly)


def _on_slurm(run: Run) -> bool:
    return run.config.executor == "slurm"


def _forecast(required: Requirements) -> str | Exception:
    with tempfile.TemporaryDirectory(prefix="campaign-submit-") as folder:
        return forecast(required, Path(folder))


def _refuses(check: Check) -> bool:
    known = check.id in ("slurm.partition", "slurm.submit")
    return known and check.verdict is Severity.PROBLEM and not check.away
