"""Is this machine, this cluster, this store fit for a campaign? Gathers what is seen, then asks for the verdicts."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Unreachable
from ..executors import job_request
from ..executors.base import JobArray, SubmissionRefused, SubmissionUnclear
from ..executors.slurm import SlurmExecutor, job_name
from .check import At, Check
from .check_host import host_checks
from .check_node import files_check, node_checks
from .check_slurm import Forecast, slurm_checks
from .cluster import Cluster, cluster
from .login_host import login, missing_files
from .node_job import Examined, Tell, examine
from .requirements import Wants

if TYPE_CHECKING:
    from ..campaign.location import Location


def doctor(where: Location, wants: Sequence[Wants], *, on_node: bool, wait_s: float, tell: Tell) -> list[Check]:
    """All verdicts.

    Args:
        where: The campaign's folder and store.
        wants: What a spec asks for; empty without one.
        on_node: Have a node looked at too, the one that asks for the most.
        wait_s: How long its job may wait in the queue.
        tell: Takes words on what is waited for.
    """
    seen = login(where)
    by_slurm = [want for want in wants if want.config.executor == "slurm"]
    found = cluster() if by_slurm or (not wants and shutil.which("scontrol")) else None
    checks = list(slurm_checks(found, by_slurm, _forecasts(found, by_slurm))) if found else []
    checks += _files(f"host {seen.host}", wants)
    examined = _examined(where, wants, found, wait_s, tell) if on_node and wants else None
    shared = examined is not None and examined.shared is True
    first = list(host_checks(seen, wants, shared=shared))
    return [*first, *checks, *(_of_node(examined, wants, seen.host) if examined else [])]


def _forecasts(found: Cluster | None, wants: Sequence[Wants]) -> list[Forecast]:
    """Slurm's word on each kind of job."""
    if found is None or found.trouble:
        return []
    with tempfile.TemporaryDirectory(prefix="campaign-doctor-") as folder:
        return [_forecast(want, Path(folder)) for want in wants]


def _forecast(want: Wants, folder: Path) -> Forecast:
    token = uuid.uuid4().hex[:12]
    batch = JobArray(token, job_name(token), folder, 1, job_request.resources(want.config))
    try:
        return Forecast(SlurmExecutor().forecast(batch))
    except SubmissionRefused as exc:
        return Forecast(str(exc), refused=True)
    except SubmissionUnclear as exc:
        return Forecast(str(exc), unknown=True)
    except Unreachable as exc:
        return Forecast(exc.message, unknown=True)


def _files(here: str, wants: Sequence[Wants]) -> Iterator[Check]:
    """What the spec names, seen from here. A node of a cluster may have what this host has not."""
    named = sorted({path for want in wants for path in want.files})
    if not named:
        return
    missing = missing_files(named)
    local = any(want.config.executor == "local" for want in wants)
    if missing and not local:
        yield At(here).note("host.files", f"not here: {', '.join(missing)}", "`--on-node` tells whether nodes have it")
    else:
        yield replace(files_check(missing, At(here)), id="host.files")


def _examined(where: Location, wants: Sequence[Wants], found: Cluster | None, wait_s: float, tell: Tell) -> Examined:
    if found is not None and found.trouble:
        return Examined(None, "no node was looked at: Slurm does not answer", "try again", away=True)
    try:
        return examine(wants[0], where.settings, wait_s, tell)
    except OSError as exc:
        return Examined(None, f"{exc.filename or where.settings.dir}: {exc.strerror or exc}", "see folder.writable")


def _of_node(examined: Examined, wants: Sequence[Wants], host: str) -> Iterator[Check]:
    """Verdicts on the node that was looked at."""
    want, at = wants[0], At("node")
    if examined.report is not None:
        at = At(f"node {examined.report.node}")
    if examined.trouble:
        yield at.problem("node.reached", examined.trouble, examined.hint, away=examined.away)
    elif want.config.executor == "slurm":
        yield at.ok("node.reached", "a job ran there and reported")
    if want.config.executor == "slurm" and examined.shared:
        yield at.ok("node.shared", "reads what this host writes into the folder, and this host what it writes")
    elif examined.shared is False:
        yield at.problem("node.shared", "does not see the folder as this host does", examined.hint)
    if examined.report is not None:
        yield from node_checks(examined.report, want, left=examined.hint, other=f"that of {host}")
    if len(wants) > 1:
        others = ", ".join(other.named for other in wants[1:])
        seen = f"looked at for {want.named}; other runs ask for other machines: {others}"
        yield at.note("node.others", seen, "a spec of theirs alone lets you look at those")
