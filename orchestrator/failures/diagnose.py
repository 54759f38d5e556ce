"""What an error is, whoever told of it: by its errno, its own words, or its kind. Pure."""

from __future__ import annotations

from .evidence import Clue, Ended
from .kinds import Scene, by_errno, kind_of
from .policy import FailureClass
from .raised import Raised, nested
from .rules import MEMORY_RULES, RULES, Rule, RuleTable
from .verdict import Diagnosis, Sureness
from .vocabulary import of_circumstances


def diagnosis_of(clue: Clue, ended: Ended) -> tuple[Diagnosis | None, str]:
    """What the error is, and the text that says so: its own or that of an exception in its chain."""
    found = _judged(clue.raised, clue.text, ended)
    if found and found.sure is Sureness.CERTAIN and found.name != "no-file":
        return found, clue.text
    causes = [(earlier, cause.text) for cause in clue.causes if (earlier := _judged(cause, cause.text, ended))]
    for earlier, text in causes:
        if earlier.kind is not FailureClass.DETERMINISTIC:
            return earlier, text
    if found is None and causes and (nested(clue.raised) or not of_circumstances(clue.text)):
        return causes[-1]
    return found, clue.text


def _judged(raised: Raised, text: str, ended: Ended) -> Diagnosis | None:
    """What its errno or its own words prove, else what kind of error it is."""
    seen = scene(raised, ended)
    return match(text, ended, MEMORY_RULES) or by_errno(seen) or match(text, ended) or kind_of(seen)


def scene(raised: Raised, ended: Ended) -> Scene:
    """The exception, and what the attempt tells of its circumstances."""
    return Scene(raised, ended.trained, ended.resumes, ended.nodes)


def match(text: str, ended: Ended, rules: RuleTable = RULES) -> Rule | None:
    """The rule that the text matches, of those that may hold at this time."""
    return rules.first(text, trained=ended.trained, resumes=ended.resumes)


def same(found: Diagnosis, clue: Clue, ended: Ended) -> bool:
    """Whether that is an error of the same cause."""
    other, _ = diagnosis_of(clue, ended)
    return other is not None and other.name == found.name
