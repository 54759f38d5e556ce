"""What `campaign doctor` says of one thing: a verdict, what was seen, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from dscampaign.orchestrator.errors import EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE


class Severity(StrEnum):
    """How it stands with one thing, the best first."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; a campaign runs all the same."""
    WARNING = "warning"
    """A campaign may run badly, or lose something."""
    PROBLEM = "problem"
    """A campaign will not run as it should."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        id: such as `slurm.partition`; the same in every version.
        where: what was looked at, such as `slurm` or `node gpu001`.
        seen: one line.
        next: what to do, "" where nothing is.
        away: what was asked gave no answer, so that the same may go well later.
    """

    id: str
    where: str
    verdict: Severity
    seen: str
    next: str = ""
    away: bool = False


@dataclass(frozen=True)
class At:
    """Makes checks of one place."""

    where: str

    def ok(self, about: str, seen: str) -> Check:
        """Nothing to do."""
        return Check(about, self.where, Severity.OK, seen)

    def note(self, about: str, seen: str, then: str = "") -> Check:
        """Worth knowing."""
        return Check(about, self.where, Severity.NOTE, seen, then)

    def warning(self, about: str, seen: str, then: str) -> Check:
        """May go badly."""
        return Check(about, self.where, Severity.WARNING, seen, then)

    def problem(self, about: str, seen: str, then: str, *, away: bool = False) -> Check:
        """Will go badly; `away` where something gave no answer."""
        return Check(about, self.where, Severity.PROBLEM, seen, then, away)


def exit_code(checks: Iterable[Check]) -> int:
    """1 where a problem has to be solved first; 3 where all that is wrong is that Slurm or the store did not answer."""
    problems = [check for check in checks if check.verdict is Severity.PROBLEM]
    if not problems:
        return EXIT_OK
    return EXIT_UNREACHABLE if all(check.away for check in problems) else EXIT_FAILED
