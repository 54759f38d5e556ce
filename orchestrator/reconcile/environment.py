"""Checks that this host can work on a campaign: its folders, its Python environments and its cluster are here."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.private_files import open_regular
from dscampaign.jobs.agent.launch import RANK_SCRIPT
from dscampaign.jobs.shared.layout import CampaignPaths, cluster_file
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors.base import Executor
from dscampaign.orchestrator.spec.model import RunConfig

from .actions import Action, Submit

NAME_BYTES = 256

_OWN = (sys.executable, RANK_SCRIPT)
"""Files of this program that every attempt needs; a cluster has them under the same path on all nodes."""


class Environments:
    """Holds attempts back while an environment is away that was here in an earlier pass.

    One that was never seen here may be on the compute nodes alone, or misspelt: the first attempt shows.
    """

    def __init__(self) -> None:
        self._seen = set(_OWN)

    def ready(
        self, actions: Sequence[Action], configs: Iterable[RunConfig], workdir: str = ""
    ) -> tuple[Sequence[Action], list[Unreachable]]:
        """Return the actions that need nothing that is away, and errors about the rest.

        `configs` are those of all runs that were read; `workdir` is the folder in which they start, if it is away.
        """
        self._seen |= {config.python for config in configs if config.python and _is_here(config.python)}
        gone = {path for path in self._seen if not _is_here(path)}
        away: set[str] = set()
        ready = []
        for action in actions:
            missing = gone & {*_OWN, action.config.python} if isinstance(action, Submit) else set()
            away |= missing
            if not missing:
                ready.append(action)
        hint = "runs that need it are submitted when it is back"
        troubles = [Unreachable(f"{path} is unavailable", hint) for path in sorted(away)]
        if workdir and any(isinstance(action, Submit) for action in ready):
            moved = f"{hint}; if it was moved, leave a link in its place: `ln -s NEW {shlex.quote(workdir)}`"
            troubles.append(Unreachable(f"{workdir}, where the training starts, is unavailable", moved))
            ready = [action for action in ready if not isinstance(action, Submit)]
        return ready, troubles


def _is_here(path: str) -> bool:
    return os.access(path, os.R_OK) or shutil.which(path) is not None


def note_cluster(folder: Path, executor: Executor) -> None:
    """Record in the folder of an array to which cluster it is about to be submitted."""
    if name := executor.cluster():
        write_atomically(cluster_file(folder), name)


def require_same_cluster(tokens: Iterable[str], paths: CampaignPaths, executor: Executor) -> None:
    """Raise Unreachable if arrays with missing jobs were submitted to another cluster than this host's.

    A host with the slurm.conf of another cluster sees the same folder and store, and none of their jobs.
    """
    for token in tokens:
        file = cluster_file(paths.batch(token))
        theirs = ""
        with contextlib.suppress(FileNotFoundError), open_regular(file) as record:
            theirs = (record.read(NAME_BYTES) or b"").decode(errors="replace").strip()
        if theirs and theirs.casefold() != (own := executor.cluster()).casefold():
            if not own:
                raise Unreachable("scontrol does not name this cluster", "the next pass tries again")
            raise Unreachable(
                f"jobs of this campaign are on cluster {theirs}, and this host uses cluster {own}",
                f"work on a host of {theirs}, or with its SLURM_CONF; if that cluster is no more, "
                f"`rm {paths.batches}/*/{file.name}` gives its jobs up",
            )
