"""The verdict on an ended attempt: its failure class, the reason and the proof."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...jobs.agent.evidence import LogLine
from .policy import FailureClass

HEADLINE_LIMIT = 240


@dataclass(frozen=True)
class Verdict:
    """A failure class with its proof.

    Attributes:
        reason: one line for people.
        hint: what to change, "" if nothing.
        line: the line that matched, with its file.
        rule: the name of the rule that matched; "user: PATTERN" for one of the user's own.
        host: the node whose evidence matched, "" if it points to none.
    """

    kind: FailureClass
    reason: str
    hint: str = ""
    line: LogLine | None = None
    rule: str = ""
    host: str = ""


def headline(text: str) -> str:
    """An error's text on one line: pydantic, for one, says only in its third line what it does not permit."""
    stripped = (line.strip() for line in text.splitlines())
    lines = [line for line in stripped if line and not line.startswith("For further information")]
    joined = " ".join(lines[:3]).removeprefix("builtins.").removeprefix("pydantic_core._pydantic_core.")
    joined = joined.split(" [type=")[0]
    joined = re.sub(r"RuntimeError: \[enforce fail [^\]]*\] [^.]*\. ", "", joined)  # c10's own line number
    joined = joined.rstrip(": ")  # of an error without words
    return joined if len(joined) <= HEADLINE_LIMIT else joined[:HEADLINE_LIMIT] + "…"
