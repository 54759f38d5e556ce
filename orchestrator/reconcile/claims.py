"""Claims that the reconciler takes, so that no job can begin an attempt that is over."""

from __future__ import annotations

import json
import time

from ...db.records import AttemptRow
from ...jobs.shared.files import create_exclusively, make_below, read_json
from ..executors import job_request
from ..executors.job_request import attempt_paths


def take_claim(row: AttemptRow) -> bool:
    """Takes an attempt's claim for the reconciler; False if a job was faster.

    Raises:
        OSError: the shared folder takes no files.
    """
    files, mine = attempt_paths(row), job_request.revoked(row.token)
    if files.claim.exists():
        return (read_json(files.claim) or {}).get("job_id") == mine
    make_below(files.dir.parents[1], files.dir)  # the folder of all runs is made by whoever records the campaign
    taken = create_exclusively(files.claim, json.dumps({"job_id": mine, "ts": time.time()}))
    return taken or (read_json(files.claim) or {}).get("job_id") == mine
