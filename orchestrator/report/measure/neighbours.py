"""The other runs beside which a run trained on its node: they may take its time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from dscampaign.db.records import AttemptRow


def neighbours(attempts: Iterable[AttemptRow]) -> dict[int, float]:
    """Return how many others ran in its job at a time, on average, by run id; no run that had none."""
    jobs: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for row in attempts:
        if row.task is not None and row.job_id and row.started_s and row.ended_s:
            jobs[row.job_id].append((row.started_s, row.ended_s, row.run_id))
    own_s, beside_s = defaultdict[int, float](float), defaultdict[int, float](float)
    for spans in map(sorted, jobs.values()):
        for place, (start, end, run_id) in enumerate(spans):
            own_s[run_id] += end - start
            for later, until, other in spans[place + 1 :]:
                if later >= end:
                    break
                for each in (run_id, other):
                    beside_s[each] += min(end, until) - later
    return {run_id: seconds / own_s[run_id] for run_id, seconds in beside_s.items() if seconds > 0}
