"""Start this node's ranks under their launcher, follow them to their end, and leave nothing of them behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.private_files import open_private
from dscampaign.jobs.collect.collector import Collector
from dscampaign.jobs.shared import allocator, variables
from dscampaign.jobs.shared.code_copy import CodeCopy
from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.jobs.shared.payload import Payload
from dscampaign.jobs.shared.process_groups import signal_group

from . import cleanup, container, launch, launchers, node_cache
from .node import Node, Start
from .progress import RankWatch
from .watch import LINGER_S, LINGERS, TERM_GRACE_S, Watch

_NAMED_COMMANDS = 5
_BUILDS = "TORCH_EXTENSIONS_DIR"

DEAF_TO_USR2 = ("/bin/sh", "-c", 'trap "" USR2; exec "$@"', "launcher")
"""Slurm may send USR2 to every process of the job, and the launcher would die of it. A signal that is ignored stays
ignored in the ranks until they ask for it."""


class Launcher:
    """Launches of an attempt on this node: of its searches, and of its training.

    Args:
        umask: for the ranks.
        tell: records an event of the attempt.

    Attributes:
        facts: of the last launch, by the names of the outcome's fields.
    """

    def __init__(
        self,
        node: Node,
        watch: Watch,
        progress: RankWatch,
        umask: int,
        copy: CodeCopy | None,
        tell: Callable[..., None],
    ) -> None:
        self._node, self._watch, self._progress, self._umask = node, watch, progress, umask
        self._copy, self.tell = copy, tell
        self.facts: dict[str, Any] = {}

    def launch(
        self, payload: Payload, paths: AttemptPaths, start: Start, collector: Collector | None = None
    ) -> tuple[int, str]:
        """Start this node's ranks and wait; return their launcher's exit code, and why they were ended."""
        rank = self._node.rank
        digests = variables.digests(os.environ, payload.env)
        payload = launch.filled(payload, paths, start.resume)
        hostfile = paths.dir / f"hostfile-{rank}"
        write_atomically(hostfile, launch.hostfile_text(payload.nodes, payload.ranks_per_node))
        cores = len(os.sched_getaffinity(0))
        image = str((payload.container or {}).get("image", ""))
        caches = node_cache.variables(os.environ | payload.env, image)
        env = launch.environment(payload, paths, self._node, start.resume, os.environ | caches, cores, self._copy)
        env |= self._progress.variables
        self.facts = {"allocator": allocator.setting(env), "variables": digests}
        for lock in cleanup.clear_build_locks(Path(caches[_BUILDS])) if _BUILDS in caches else ():
            print(f"{lock} was removed: its build has ended", file=sys.stderr, flush=True)
        line = launch.command(payload, hostfile, rank, start.address, start.port, self._copy)
        line, env = container.wrapped(line, env, payload, paths)
        with open(paths.launcher_log(rank), "ab", opener=open_private) as log:
            launcher = subprocess.Popen(
                [*DEAF_TO_USR2, *line],
                cwd=paths.dir,  # `python -m` puts the present folder first: the user's would shadow modules
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
                umask=self._umask,
            )
        ended_by = self._watch.follow(launcher, paths, start, collector)
        signal_group(launcher.pid)  # ranks and loader workers that outlived their launcher
        if left := cleanup.end_left_processes(paths.dir, TERM_GRACE_S, self._watch.rank_pids()):
            first = f"{left[0]}{f', and {len(left) - 1} more' if len(left) > 1 else ''}"
            message = f"the script left processes in sessions of their own, which were ended: {first}"
            self.tell("left_processes", message=message, commands=left[:_NAMED_COMMANDS])
        self._progress.look()
        if ended_by == LINGERS:
            minutes = LINGER_S / 60
            print(f"ranks that had ended well {minutes:.0f} minutes ago were still there: killed", file=sys.stderr)
            return 0, "stop" if self._watch.stop_asked else ""
        return launchers.exit_code(launcher.wait(), paths.launcher_log(rank)), ended_by
