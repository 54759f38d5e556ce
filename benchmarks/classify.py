"""How well and how fast an attempt's end is judged, on the labelled corpus of the tests.

    python benchmarks/classify.py [--batch N] [--family NAME] [--wrong]

Batch 1 was at hand when the rules were written; the later ones were first judged by rules that had not seen them.
The tests keep 393 of the 1,419 cases on which the rules were judged; the history of tests/corpus has the others.
Prints the confusion table (a row is what it was, a column what it was taken for), precision and recall of each class,
the accuracy of each family, and the time for one case and for an end of NCCL's on 1, 8 and 256 ranks.

What a user meets are ends that nobody had seen: the last table is of the first contact with each family of batches 5
to 7, 9 and 11, whose authors had not read the rules. The rules of the commit named there had seen only the families
above it. "Before" are the rules of 20ff707, which matched messages. To repeat a row, check the commit out and add that
family's file, and phrases.yaml, to tests/corpus; of batch 11 it then counts one case more as right, whose label was
corrected. Batches 8 and 10 have no first contact: their authors had read the rules.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dscampaign.jobs.agent.evidence import LogLine, NodeOutcome, RankEnd
from dscampaign.orchestrator.failures.classify import classify
from dscampaign.orchestrator.failures.evidence import Ended
from dscampaign.tests.corpus import Case, load
from dscampaign.tests.corpus.score import Judged, accuracy, confusion, judge, precision, recall

REPEATS = 20
RANKS = 1, 8, 256
NCCL = """\
NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited or there was a network error, NCCL version 2.27
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
Last error:
socketProgress: Connection closed by remote peer n1<47114>"""
WATCHDOG = "[rank{0}]:[E1120 ProcessGroupNCCL.cpp:1553] [PG 0 Rank {0}] Watchdog: remote process exited"
FRAMES = [("/u/train.py", 9, "main", "loss.backward()")]
TRACEBACK = "Traceback (most recent call last):", '  File "/u/train.py", line 9, in main', "    loss.backward()"
FIRST_CONTACT = Path(__file__).parent / "results" / "first-contact.csv"


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, help="only the cases of this batch")
    parser.add_argument("--family", help="only the cases of this family")
    parser.add_argument("--wrong", action="store_true", help="list the cases that were misjudged")
    options = parser.parse_args()
    wanted = (case for case in load() if options.batch in (None, case.batch))
    cases = [case for case in wanted if options.family in (None, case.family)]
    if not cases:
        parser.error("no such cases")
    judged = judge(cases)
    _print_confusion(judged)
    _print_classes(judged)
    hard = [one for one in judged if one.case.hard]
    print(f"\n{len(judged)} cases, {len(hard)} of them hard negatives")
    print(f"accuracy {accuracy(judged):.3f}" + (f", of the hard negatives {accuracy(hard):.3f}" if hard else ""))
    for batch in sorted({case.batch for case in cases}):
        print(f"accuracy of batch {batch}: {accuracy(one for one in judged if one.case.batch == batch):.3f}")
    median_us, worst_us = _times_us(cases)
    print(f"{median_us:.0f} µs per case (median), {worst_us:.0f} µs for the longest")
    for ranks in RANKS:
        shortest = min(_time_us(_nccl_end(ranks)) for _ in range(5))
        print(f"{shortest / 1e3:.1f} ms for an end of {ranks} ranks, each with an error of NCCL's and 24 lines of log")
    _print_families(judged)
    if options.family is None and options.batch is None:
        _print_first_contact()
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


def _print_families(judged: Sequence[Judged]) -> None:
    print(f"\n{'family':22} {'cases':>5} {'accuracy':>8}")
    for family in sorted({one.case.family for one in judged}):
        of_family = [one for one in judged if one.case.family == family]
        print(f"{family:22} {len(of_family):5} {accuracy(of_family):8.3f}")


def _print_first_contact() -> None:
    """The table of first contacts, and the mean over its families."""
    with FIRST_CONTACT.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    head = f"{'cases':>5} {'before':>6} {'right':>6} {'hard':>7} {'deterministic':>13}"
    print(f"\n{'first contact':22} {'rules':8} {head}")
    for row in rows:
        hard = f"{row['hard_right']}/{row['hard']}"
        mistakes = f"{row['deterministic_right']}/{row['deterministic_verdicts']}"
        before, first = _share(row, "before_right"), _share(row, "right")
        figures = f"{row['cases']:>5} {before:6.3f} {first:6.3f} {hard:>7} {mistakes:>13}"
        print(f"{row['family']:22} {row['commit']:8} {figures}")
    before, first = (statistics.mean(_share(row, key) for row in rows) for key in ("before_right", "right"))
    print(f"{'mean of the families':37} {before:6.3f} {first:6.3f}")


def _share(row: dict[str, str], key: str) -> float:
    return int(row[key]) / int(row["cases"])


def _times_us(cases: Sequence[Case]) -> tuple[float, float]:
    """Median over the cases, and the longest; each is the shortest of some repeats."""
    times = [min(_time_us(case.ended) for _ in range(REPEATS)) for case in cases]
    return statistics.median(times), max(times)


def _time_us(ended: Ended) -> float:
    fresh = replace(ended)  # which has kept nothing of the last time
    begun = time.process_time()
    classify(fresh)
    return (time.process_time() - begun) * 1e6


def _nccl_end(ranks: int) -> Ended:
    """An attempt on nodes of eight ranks, all of which NCCL tells that another one is gone."""
    nodes = [_node(rank, min(8, ranks)) for rank in range(0, ranks, 8)]
    return Ended(None, nodes, len(nodes), 1000, True, False)


def _node(first: int, ranks: int) -> NodeOutcome:
    error = {"type": "torch.distributed.DistBackendError", "message": NCCL, "ts": 10.0, "frames": FRAMES}
    ends = tuple(RankEnd(rank, 1, error, rank) for rank in range(first, first + ranks))
    texts = [*[WATCHDOG] * 20, *TRACEBACK, f"{error['type']}: {NCCL.splitlines()[0]}"]
    lines = [
        LogLine(f"t_rank{rank}.log", number, text.format(rank))
        for rank in range(first, first + ranks)
        for number, text in enumerate(texts, 1)
    ]
    return NodeOutcome(1, "12_0", first // 8, f"n{first // 8}", 1, "", 0.0, 100.0, 0, 30, ends, tuple(lines))


if __name__ == "__main__":
    main()
