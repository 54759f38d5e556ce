"""Events of forwarders, for the store: lines of a file beside the metrics."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time

from dscampaign.files.private_files import open_private
from dscampaign.jobs.shared.layout import AttemptPaths

_PASSWORD = re.compile(r"://(?:[^/\s:@]*:(?!\d+/)\S+|[^/\s:@]+)@")
_QUERY = re.compile(r"([?&][\w-]*(?:password|token|secret|key)=)[^&\s]+", re.IGNORECASE)
_LONGEST = 500


def tell(paths: AttemptPaths, event: str, tool: str, message: str, **data: object) -> None:
    """Record an event of the attempt, `forward.<event>`, in one write; a full disk loses it and nothing else."""
    message = without_password(message)[:_LONGEST]
    print(message, file=sys.stderr, flush=True)
    line = json.dumps({"event": event, "ts": time.time(), "tool": tool, "message": message, **data}) + "\n"
    with contextlib.suppress(OSError), open(paths.forward_spool, "ab", 0, opener=open_private) as spool:
        spool.write(line.encode())


def tell_unfinished(paths: AttemptPaths, tool: str, reason: str) -> None:
    """Record that a tool lacks lines, and how it gets them."""
    advice = f"`python -m dscampaign.jobs.forward {paths.dir} {tool}` passes the rest on, the next attempt does too"
    kept = ", and `wandb sync` what W&B keeps in files" if tool == "wandb" else ""
    tell(paths, "unfinished", tool, f"{tool}: {reason}; {advice}{kept}")


def without_password(text: str) -> str:
    """Return the text without names and passwords in addresses, and without secrets in their queries."""
    return _QUERY.sub(r"\1…", _PASSWORD.sub("://", text))
