"""Jobs are looked for on the cluster that took them: on any other none of them is known, which says nothing.

A host with the slurm.conf of another cluster sees the same folder and store. Each array's folder says whose it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.regular_files import open_regular
from dscampaign.jobs.shared.layout import CampaignPaths, cluster_file
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors.base import Executor

NAME_BYTES = 256


def note_cluster(folder: Path, executor: Executor) -> None:
    """Writes down in the folder of an array where it is about to be submitted."""
    if name := executor.cluster():
        write_atomically(cluster_file(folder), name)


def require_same_cluster(tokens: Iterable[str], paths: CampaignPaths, executor: Executor) -> None:
    """Makes sure that arrays of which jobs are missing were submitted to the cluster that was asked.

    Raises:
        Unreachable: they were not, or nobody knows.
    """
    for token in tokens:
        file = cluster_file(paths.batch(token))
        theirs = ""
        with contextlib.suppress(FileNotFoundError), open_regular(file) as record:  # an older version left none
            theirs = (record.read(NAME_BYTES) or b"").decode(errors="replace").strip()
        if theirs and theirs.casefold() != (here := executor.cluster()).casefold():
            if not here:
                raise Unreachable("scontrol does not name this cluster", "the next pass tries again")
            raise Unreachable(
                f"jobs of this campaign are on cluster {theirs}, and this host uses cluster {here}",
                f"work on a host of {theirs}, or with its SLURM_CONF; if that cluster is no more, "
                f"`rm {paths.batches}/*/{file.name}` gives its jobs up",
            )
