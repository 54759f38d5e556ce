"""Campaigns of DeepSpeed training runs on a Slurm cluster.

A training script needs two functions of this package, ``report`` and ``should_stop``. With ``phase`` and ``progress``
it helps to tell a hang and a slow rank from a long evaluation.

In a notebook or a script, ``Campaign`` does what the command line does, and ``load`` reads a campaign's results as
pandas frames. Their errors are ``UserError`` and ``StoreError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .db.errors import StoreError as StoreError
    from .jobs.report import phase as phase
    from .jobs.report import progress as progress
    from .jobs.report import report as report
    from .jobs.report import should_stop as should_stop
    from .orchestrator.api.campaign import Campaign as Campaign
    from .orchestrator.errors import SpecError as SpecError
    from .orchestrator.errors import UserError as UserError
    from .orchestrator.export.frames import load as load

__version__ = "0.1.0"
__all__ = ["Campaign", "SpecError", "StoreError", "UserError", "load", "phase", "progress", "report", "should_stop"]

_PLACES = {
    "Campaign": "orchestrator.api.campaign",
    "SpecError": "orchestrator.errors",
    "StoreError": "db.errors",
    "UserError": "orchestrator.errors",
    "load": "orchestrator.export.frames",
}


def __getattr__(name: str) -> object:
    """Load a name on first use, so that importing the package costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_PLACES.get(name, 'jobs.report')}", __name__), name)
