"""The rules against the corpus: what must hold over all of it, whatever single cases come to."""

from __future__ import annotations

from collections import Counter

import pytest

from dscampaign.orchestrator.failures import FailureClass

from ..corpus import Case, load
from ..corpus.score import Judged, accuracy, judge, precision, recall

MISTAKES = [
    FailureClass.DETERMINISTIC,
    FailureClass.CANCELLED,
    FailureClass.COMPLETED,
    FailureClass.DIVERGED,
]
"""The classes after which nothing is tried again."""

NEVER_CLASSIFIED = {FailureClass.LOST, FailureClass.REFUSED}
"""Of attempts that never ran: decided where they are submitted."""


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return load()


@pytest.fixture(scope="module")
def judged(cases: list[Case]) -> list[Judged]:
    return judge(cases)


def wrong(judged: list[Judged]) -> list[str]:
    """What to read when a demand is not met."""
    return [f"{one.case.name}: {one.case.label}, not {one.verdict.kind}" for one in judged if not one.right]


def test_the_corpus_is_large_enough_to_say_something(cases: list[Case]) -> None:
    labels = Counter(case.label for case in cases)
    assert len(cases) >= 150
    assert sum(case.hard for case in cases) >= 40
    assert set(labels) == set(FailureClass) - NEVER_CLASSIFIED
    assert min(labels.values()) >= 4
    assert len({case.name for case in cases}) == len(cases)
    assert {case.batch for case in cases} == {1, 2, 3, 4}


def test_most_verdicts_are_right(judged: list[Judged]) -> None:
    assert accuracy(judged) >= 0.95, wrong(judged)


@pytest.mark.parametrize("kind", MISTAKES)
def test_what_is_not_tried_again_is_surely_that(judged: list[Judged], kind: FailureClass) -> None:
    taken = [f"{one.case.name} ({one.case.label})" for one in judged if one.verdict.kind is kind and not one.right]
    assert precision(judged, kind) >= 0.99, taken


@pytest.mark.parametrize("kind", sorted(set(FailureClass) - NEVER_CLASSIFIED))
def test_no_class_is_lost_on_the_rules(judged: list[Judged], kind: str) -> None:
    assert recall(judged, kind) >= 0.8, wrong([one for one in judged if one.case.label == kind])
    assert precision(judged, kind) >= 0.8


def test_what_only_sounds_like_another_class_is_told_apart(judged: list[Judged]) -> None:
    hard = [one for one in judged if one.case.hard]
    assert accuracy(hard) >= 0.95, wrong(hard)


def test_the_node_is_named_where_one_is_to_blame(judged: list[Judged]) -> None:
    assert [one.case.name for one in judged if not one.host_right] == []


def test_every_verdict_but_the_vague_has_its_proof(judged: list[Judged]) -> None:
    vague = {FailureClass.COMPLETED, FailureClass.STOPPED, FailureClass.CRASH}
    bare = [one.case.name for one in judged if one.verdict.kind not in vague and not one.verdict.rule]
    assert bare == []


def test_no_verdict_rests_on_an_echo(judged: list[Judged]) -> None:
    """A case whose only errors are echoes is never a mistake."""
    for one in judged:
        if one.verdict.kind is FailureClass.DETERMINISTIC:
            assert one.verdict.line is not None, one.case.name
            assert "remote process exited" not in one.verdict.line.text
            assert "Connection closed by peer" not in one.verdict.line.text
