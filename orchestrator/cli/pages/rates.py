"""How fast a campaign of many runs goes, and which of them run longest: beside conditions that hide single runs."""

from __future__ import annotations

from dscampaign.db.records import RunStatus
from dscampaign.db.states import RunState
from dscampaign.orchestrator.campaign.status import CampaignStatus, run_longest
from dscampaign.orchestrator.formatting import count, duration, short_number

from .text import Page, Style


def rates_lines(status: CampaignStatus, page: Page) -> list[str]:
    """Tokens a second and ended runs, then the runs that run longest; nothing where nobody has just looked."""
    if not status.seen_now:
        return []
    lines = [line for line in (_rates(status), _longest(status)) if line]
    return [page.paint(line, Style.DIM) for line in lines]


def _rates(status: CampaignStatus) -> str:
    """`1.2M tokens/s of 20 running · 31 runs ended in the last hour`."""
    speeds = [run.tokens_per_s for run in _running(status) if run.tokens_per_s and not _of_before(run)]
    ended = status.ended_last_hour
    parts = [f"{short_number(sum(speeds))} tokens/s of {len(speeds):,} running"] if speeds else []
    return " · ".join([*parts, *([f"{count(ended, 'run')} ended in the last hour"] if ended else [])])


def _longest(status: CampaignStatus) -> str:
    """`running longest: lr-7 for 3 h 20 min of 4 h (5 min left), lr-9 for 2 h of 4 h`."""
    longest = run_longest(status.runs)
    return f"running longest: {', '.join(_for(run, status) for run in longest)}" if longest else ""


def _for(run: RunStatus, status: CampaignStatus) -> str:
    left_s = status.left_s.get(run.run_id)
    left = "" if left_s is None else f" ({duration(left_s)} left)"
    limit_s = status.limits_s.get(run.run_id)
    of = "" if limit_s is None else f" of {duration(limit_s)}"
    return f"{run.name} for {duration(status.now_s - (run.started_s or 0.0))}{of}{left}"


def _running(status: CampaignStatus) -> list[RunStatus]:
    return [run for run in status.runs if run.state is RunState.RUNNING]


def _of_before(run: RunStatus) -> bool:
    return (run.ts_s or 0.0) < (run.started_s or 0.0)
