"""Which steps lines stand for: those that are lost, made again, or written between two lines."""

from __future__ import annotations

from collections.abc import Callable

from dscampaign.orchestrator.report.facts import RunFacts

from .planted import Planted, Try, results_at

PlantStore = Callable[..., str]


def first_run(url: str) -> RunFacts:
    return results_at(url).runs[0]


def test_lost_lines_are_not_steps_that_were_made_again(planted_url: PlantStore) -> None:
    lost = frozenset(range(50, 60))
    run = first_run(planted_url(Planted("lost", drop=lost)))
    assert (run.quality.received, run.quality.gaps, run.quality.repeated) == (90, 10, 0)


def test_both_are_told_apart(planted_url: PlantStore) -> None:
    tries = (Try(0, 60, "node"), Try(50, 100))
    run = first_run(planted_url(Planted("both", drop=frozenset(range(20, 30)), tries=tries)))
    assert (run.quality.received, run.quality.gaps, run.quality.repeated) == (90, 10, 10)
