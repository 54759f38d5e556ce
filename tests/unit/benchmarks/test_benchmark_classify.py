"""The kept figures of first contacts are of the families in the corpus."""

from __future__ import annotations

import csv
from collections import Counter

from dscampaign.benchmarks.classify import FIRST_CONTACT
from dscampaign.tests.corpus import load

BATCHES = (5, 6, 7, 9, 11)


def test_every_family_of_authors_who_had_not_read_the_rules_has_its_first_contact() -> None:
    rows = list(csv.DictReader(FIRST_CONTACT.read_text(encoding="utf-8").splitlines()))
    cases = [case for case in load() if case.batch in BATCHES]
    kept = Counter(case.family for case in cases)
    hard = Counter(case.family for case in cases if case.hard)
    assert {row["family"] for row in rows} == set(kept)
    for row in rows:  # the corpus keeps a part of what was judged then
        assert kept[row["family"]] <= int(row["cases"])
        assert hard[row["family"]] <= int(row["hard"])
    assert [int(row["order"]) for row in rows] == list(range(1, len(rows) + 1))
