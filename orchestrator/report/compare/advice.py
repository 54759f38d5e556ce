"""The DeepSpeed configuration of a condition. Pure."""

from __future__ import annotations

from .conditions import Condition


def unread_config(chosen: Condition) -> str:
    """Return the reason that no DeepSpeed configuration of a condition is shown; empty if it is shown."""
    if chosen.heeds_config:
        return ""
    if {run.read_config for run in chosen.runs} == {False}:
        return f"{chosen.name}'s script did not read CAMPAIGN_DS_CONFIG, so no DeepSpeed configuration is shown."
    return (
        f"No DeepSpeed configuration is shown: it is not known whether {chosen.name}'s script read CAMPAIGN_DS_CONFIG."
    )
