"""Forward the rest of an attempt that has ended: ``python -m dscampaign.jobs.forward ATTEMPT_DIR TOOL``.

With ``--live``, the process that the first node's agent starts for a tool: it follows the attempt. When its standard
input closes, the attempt is over, it forwards the rest and ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

from dscampaign.files.atomic_files import alone, read_json
from dscampaign.files.ownership import Distrusted, trusted_bytes
from dscampaign.files.private_files import make_below
from dscampaign.jobs.shared.layout import FORWARD_ROOT_LEVELS, AttemptPaths
from dscampaign.jobs.shared.payload import Payload

from .loop import Forwarding
from .processes import FINISH_S, LIVE, how_it_ended

NICENESS = 10  # training comes first
NOT_RUN = 75


def main(argv: list[str]) -> int:
    """Forward the attempt in the folder ``argv[0]`` to the tool ``argv[1]``."""
    os.umask(0o077)
    os.nice(NICENESS)
    paths, tool, live = AttemptPaths(Path(argv[0]).absolute()), argv[1], LIVE in argv[2:]
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT) if live else ():
        signal.signal(number, signal.SIG_IGN)  # Slurm signals every process of a job; the agent ends this one
    try:
        content = trusted_bytes(paths.forward_payload, paths.dir.parents[FORWARD_ROOT_LEVELS])
    except Distrusted as doubt:
        print(f"not run: {doubt}", file=sys.stderr)
        return NOT_RUN
    over, how = threading.Event(), list[str]()
    if live:
        threading.Thread(target=_wait, args=(over, how), daemon=True).start()
    else:
        over.set()
    payload = Payload.of(json.loads(content), paths.forward_payload)
    state = payload.run_paths.forward_state(payload.config_hash, tool)
    make_below(payload.run_paths.dir, state.parent, closed=True)
    with alone(state.with_suffix(".lock")):  # the attempt before may have ended a moment ago
        Forwarding(payload, tool).run(over, lambda: how[0] if live else _recorded(paths))
    return 0


def _recorded(paths: AttemptPaths) -> str:
    outcome = read_json(paths.outcome(0)) or {}
    return how_it_ended(outcome.get("launcher_exit"), outcome.get("ended_by", ""))


def _wait(over: threading.Event, how: list[str]) -> None:
    """Wait for the end. From then on time is limited, even if the tool hangs and no agent is left to end it."""
    how.append(sys.stdin.readline().strip() or "failed")
    over.set()
    threading.Event().wait(FINISH_S + 1)
    os._exit(1)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # a tool's own threads and exit hooks may hang
