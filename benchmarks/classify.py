"""How well and how fast an attempt's end is judged, on the labelled corpus of the tests.

    python benchmarks/classify.py [--batch N] [--wrong]

Batch 1 was at hand when the rules were written; the later ones were first judged by rules that had not seen them.
Prints the confusion table (a row is what it was, a column what it was taken for), precision and recall of each class,
and the time for one case.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from dscampaign.orchestrator.failures.classify import classify
from dscampaign.tests.corpus import Case, load
from dscampaign.tests.corpus.score import Judged, accuracy, confusion, judge, precision, recall

REPEATS = 20


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, help="only the cases of this batch")
    parser.add_argument("--wrong", action="store_true", help="list the cases that were misjudged")
    options = parser.parse_args()
    cases = [case for case in load() if options.batch in (None, case.batch)]
    judged = judge(cases)
    _print_confusion(judged)
    _print_classes(judged)
    hard = [one for one in judged if one.case.hard]
    print(f"\n{len(judged)} cases, {len(hard)} of them hard negatives")
    print(f"accuracy {accuracy(judged):.3f}, of the hard negatives {accuracy(hard):.3f}")
    for batch in sorted({case.batch for case in cases}):
        print(f"accuracy of batch {batch}: {accuracy(one for one in judged if one.case.batch == batch):.3f}")
    median_us, worst_us = _times_us(cases)
    print(f"{median_us:.0f} µs per case (median), {worst_us:.0f} µs for the longest")
    for one in judged:
        if options.wrong and not one.right:
            print(f"{one.case.label} taken for {one.verdict.kind}: {one.case.name}: {one.verdict.reason}")


def _print_confusion(judged: Sequence[Judged]) -> None:
    table = confusion(judged)
    kinds = sorted({kind for pair in table for kind in pair})
    width = max(len(kind) for kind in kinds)
    print(" " * width, *(kind[:5].rjust(5) for kind in kinds))
    for label in kinds:
        cells = (str(table[label, kind] or "·").rjust(5) for kind in kinds)
        print(label.ljust(width), *cells)


def _print_classes(judged: Sequence[Judged]) -> None:
    print(f"\n{'class':14} {'cases':>5} {'precision':>9} {'recall':>6}")
    for kind in sorted({one.case.label for one in judged}):
        count = sum(one.case.label == kind for one in judged)
        print(f"{kind:14} {count:5} {precision(judged, kind):9.3f} {recall(judged, kind):6.3f}")


def _times_us(cases: Sequence[Case]) -> tuple[float, float]:
    """Median over the cases, and the longest; each is the shortest of some repeats."""
    times = [min(_time_us(case) for _ in range(REPEATS)) for case in cases]
    return statistics.median(times), max(times)


def _time_us(case: Case) -> float:
    begun = time.perf_counter()
    classify(case.ended)
    return (time.perf_counter() - begun) * 1e6


if __name__ == "__main__":
    main()
