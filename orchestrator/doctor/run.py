"""Check whether this machine, its cluster, its store and a node are fit for a campaign."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dscampaign.jobs.probe.examine import missing_files

from .check import At, Check
from .check_host import host_checks, python_checks
from .check_node import files_check, node_checks
from .check_slurm import Cluster, forecast, inspect_cluster, slurm_checks
from .node_job import Examined, Tell, examine
from .requirements import Requirements

if TYPE_CHECKING:
    from dscampaign.orchestrator.campaign.location import Location


def doctor(
    where: Location, requirements: Sequence[Requirements], *, on_node: bool, wait_s: float, tell: Tell
) -> list[Check]:
    """Return all verdicts.

    Args:
        where: the campaign's folder and store.
        requirements: of a spec; empty without one.
        on_node: also check a node, for the requirement that asks for the most.
        wait_s: how long its job may wait in the queue.
        tell: prints progress.
    """
    host = socket.gethostname()
    by_slurm = [required for required in requirements if required.config.executor == "slurm"]
    cluster = inspect_cluster() if by_slurm or (not requirements and shutil.which("sinfo")) else None
    checks = list(slurm_checks(cluster, by_slurm, _forecasts(cluster, by_slurm))) if cluster else []
    checks += _files(f"host {host}", requirements)
    checks += python_checks(f"host {host}", requirements)
    examined = _examined(where, requirements, cluster, wait_s, tell) if on_node and requirements else None
    shared = examined is not None and examined.shared is True
    first = list(host_checks(where, requirements, shared=shared))
    return [*first, *checks, *(_of_node(examined, requirements, host) if examined else [])]


def _forecasts(cluster: Cluster, requirements: Sequence[Requirements]) -> list[str | Exception]:
    if cluster.trouble:
        return []
    with tempfile.TemporaryDirectory(prefix="campaign-doctor-") as folder:
        return [forecast(required, Path(folder)) for required in requirements]


def _files(here: str, requirements: Sequence[Requirements]) -> Iterator[Check]:
    named = sorted({path for required in requirements for path in required.files})
    missing = missing_files(named)
    local = any(required.config.executor == "local" for required in requirements)
    if missing and not local:
        yield At(here).note("host.files", f"not here: {', '.join(missing)}", "check the nodes with `--on-node`")
    elif named:
        yield replace(files_check(missing, At(here)), id="host.files")


def _examined(
    where: Location, requirements: Sequence[Requirements], cluster: Cluster | None, wait_s: float, tell: Tell
) -> Examined:
    if cluster is not None and cluster.trouble:
        return Examined(None, "no node was checked: Slurm does not respond", "try again", away=True)
    try:
        return examine(requirements[0], where.settings, wait_s, tell)
    except OSError as exc:
        return Examined(None, f"{exc.filename or where.settings.dir}: {exc.strerror or exc}", "see folder.writable")


def _of_node(examined: Examined, requirements: Sequence[Requirements], host: str) -> Iterator[Check]:
    required, *others = requirements
    at = At(f"node {examined.report.node}" if examined.report else "node")
    if examined.trouble:
        yield at.problem("node.reached", examined.trouble, examined.hint, away=examined.away)
    elif required.config.executor == "slurm":
        yield at.ok("node.reached", "a job ran there; it sees the folder as this host does")
    if examined.report is not None:
        yield from node_checks(examined.report, required, left=examined.hint, other=f"that of {host}")
    if others:
        yield at.note("node.others", f"checked for {required.named} alone; other runs request other machines")
