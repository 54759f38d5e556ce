"""The verdict on an ended attempt: its failure class, the reason and the proof."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from dscampaign.jobs.agent.evidence import LogLine

from .policy import FailureClass

HEADLINE_LIMIT = 240


class Sureness(StrEnum):
    """How sure a verdict is."""

    CERTAIN = "certain"  # Slurm, the node or the error itself names the cause
    LIKELY = "likely"  # the kind of error, its place and its time suggest it
    UNSURE = "unsure"  # nothing names the cause


@dataclass(frozen=True)
class Verdict:
    """A failure class with its proof.

    Attributes:
        rule: The name of the rule that matched; "user: PATTERN" for a rule of the user's.
        host: The node whose evidence matched, "" if it points to none.
        place: Type and innermost frames of an error that may be a mistake: the same place twice is a mistake.
    """

    kind: FailureClass
    reason: str
    hint: str = ""
    line: LogLine | None = None
    rule: str = ""
    host: str = ""
    sure: Sureness = Sureness.CERTAIN
    place: str = ""

    @property
    def suspect(self) -> FailureClass | None:
        """The class if another attempt ends at the same place; None if it has none."""
        return FailureClass.DETERMINISTIC if self.place else None


def headline(text: str) -> str:
    """Return an error's text on one line; pydantic names the refused value only in its third line."""
    stripped = (line.strip() for line in text.splitlines())
    lines = [line for line in stripped if line and not line.startswith("For further information")]
    joined = " ".join(lines[:3]).removeprefix("builtins.").removeprefix("pydantic_core._pydantic_core.")
    joined = joined.split(" [type=")[0]
    joined = re.sub(r"RuntimeError: \[enforce fail [^\]]*\] [^.]*\. ", "", joined)  # c10's own line number
    joined = joined.rstrip(": ")  # of an error without words
    return joined if len(joined) <= HEADLINE_LIMIT else joined[:HEADLINE_LIMIT] + "…"
