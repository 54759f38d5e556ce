"""How well the rules judge the corpus: which class each case got, and the figures that follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from dscampaign.orchestrator.failures.classify import classify
from dscampaign.orchestrator.failures.verdict import Verdict

from . import Case


@dataclass(frozen=True)
class Judged:
    """A case and the verdict on it."""

    case: Case
    verdict: Verdict

    @property
    def right(self) -> bool:
        """Whether the class is the label's, or that of a likely mistake that is tried once more."""
        return self.case.label in (self.verdict.kind, self.verdict.suspect)

    @property
    def host_right(self) -> bool:
        """Whether the verdict names the node that the case demands, if it demands one."""
        return self.case.host is None or self.verdict.host == self.case.host


def judge(cases: Iterable[Case]) -> list[Judged]:
    """The verdict on each case."""
    return [Judged(case, classify(case.ended)) for case in cases]


def accuracy(judged: Iterable[Judged]) -> float:
    """The share that got its label's class."""
    right = [one.right for one in judged]
    return sum(right) / len(right)


def recall(judged: Iterable[Judged], kind: str) -> float:
    """Of the cases of that class, the share that was found."""
    return accuracy(one for one in judged if one.case.label == kind)


def precision(judged: Iterable[Judged], kind: str) -> float:
    """Of the verdicts of that class, the share that is right."""
    right = [one.right for one in judged if one.verdict.kind == kind]
    return sum(right) / len(right) if right else 1.0


def confusion(judged: Iterable[Judged]) -> Counter[tuple[str, str]]:
    """How often each (label, verdict) occurred."""
    return Counter((one.case.label, str(one.verdict.kind)) for one in judged)
