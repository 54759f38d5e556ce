"""Where else a run is shown: its ids in other tools, as the processes that forward its metrics have said."""

from __future__ import annotations

from collections.abc import Sequence

from ....db.records import OPENED_ELSEWHERE, EventRow
from ...formatting import clean


def forwards_document(events: Sequence[EventRow]) -> dict[str, dict[str, str]]:
    """By tool the id and the address or folder that the run has there; of its newest attempt."""
    opened = [event.data for event in events if event.kind == OPENED_ELSEWHERE]
    return {
        str(data.get("tool")): {"run_id": str(data.get("run_id", "")), "where": str(data.get("where", ""))}
        for data in opened
    }


def forward_pairs(events: Sequence[EventRow]) -> dict[str, str]:
    """By tool what a page shows."""
    return {
        clean(tool): clean(f"run {found['run_id']}, {found['where']}")
        for tool, found in forwards_document(events).items()
    }
