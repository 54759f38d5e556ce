"""Whether what attempts start with is here, their folder and Python environments: one without its own fails at once."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence

from dscampaign.jobs.agent.launch import RANK_SCRIPT
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.spec.model import RunConfig

from .actions import Action, Submit

_OWN = (sys.executable, RANK_SCRIPT)
"""What every attempt needs of this program's environment; a cluster has it under the same path on all nodes."""


class Environments:
    """Holds attempts back while an environment is away that was here in an earlier pass.

    One that was never seen here may be on the compute nodes alone, or misspelt: the first attempt shows.
    """

    def __init__(self) -> None:
        self._seen = set(_OWN)

    def ready(
        self, actions: Sequence[Action], configs: Iterable[RunConfig], workdir: str = ""
    ) -> tuple[Sequence[Action], list[Unreachable]]:
        """The actions that need nothing that is away, and what is away.

        Args:
            configs: of runs, whether they are about to start or not.
            workdir: the folder in which they start, if it is away.
        """
        self._seen |= {config.python for config in configs if config.python and _is_here(config.python)}
        away: set[str] = set()
        ready = []
        for action in actions:
            missing = self._missing(action.config) if isinstance(action, Submit) else set()
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

    def _missing(self, config: RunConfig) -> set[str]:
        return {path for path in (*_OWN, config.python) if path and path in self._seen and not _is_here(path)}


def _is_here(path: str) -> bool:
    return os.access(path, os.R_OK) or shutil.which(path) is not None
