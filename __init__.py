"""Campaigns of DeepSpeed training runs on a Slurm cluster.

A training script needs two functions of this package, ``report`` and ``should_stop``. With ``phase`` and ``progress``
it helps to tell a hang and a slow rank from a long evaluation.

In a notebook, ``load`` reads a campaign's results as pandas frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .jobs.report import phase as phase
    from .jobs.report import progress as progress
    from .jobs.report import report as report
    from .jobs.report import should_stop as should_stop
    from .orchestrator.export.frames import load as load

__version__ = "0.1.0"
__all__ = ["load", "phase", "progress", "report", "should_stop"]


def __getattr__(name: str) -> object:
    """Loads what a script or notebook calls on first use, so that importing the package costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "load":
        from .orchestrator.export.frames import load

        return load
    from .jobs import report as module

    return getattr(module, name)
