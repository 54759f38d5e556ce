"""A verdict of `campaign doctor`: the state of a check, and the advice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from dscampaign.orchestrator.errors import EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE


class Severity(StrEnum):
    """How it stands with one thing, the best first."""

    OK = "ok"
    WARNING = "warning"  # a campaign may run badly, or lose something
    PROBLEM = "problem"  # a campaign will not run as it should


@dataclass(frozen=True)
class Check:
    """One verdict."""

    id: str  # such as `slurm.partition`; the same in every version
    where: str  # the place, such as `slurm` or `node gpu001`
    verdict: Severity
    seen: str  # one line
    next: str = ""  # the advice, "" for none
    away: bool = False  # no answer came, so the same may go well later


@dataclass(frozen=True)
class At:
    """Make checks of one place."""

    where: str

    def ok(self, about: str, text: str) -> Check:
        """Return a check that asks for nothing."""
        return Check(about, self.where, Severity.OK, text)

    def warning(self, about: str, text: str, then: str) -> Check:
        """Return a check of a thing that may go badly."""
        return Check(about, self.where, Severity.WARNING, text, then)

    def problem(self, about: str, text: str, then: str, *, away: bool = False) -> Check:
        """Return a check of a thing that will go badly; `away` if no answer came."""
        return Check(about, self.where, Severity.PROBLEM, text, then, away)


def exit_code(checks: Iterable[Check]) -> int:
    """Return 1 if there is a problem to solve; 3 if the only problem is that Slurm or the store did not answer."""
    problems = [check for check in checks if check.verdict is Severity.PROBLEM]
    if not problems:
        return EXIT_OK
    return EXIT_UNREACHABLE if all(check.away for check in problems) else EXIT_FAILED
