"""The names for a shell's completion are those of the store, on both databases, though SQLAlchemy is not asked."""

from __future__ import annotations

from dscampaign.db import queries
from dscampaign.db.completion_names import read_names
from dscampaign.db.records import NewRun
from dscampaign.db.store import Store


def test_the_names_are_those_that_the_store_tells(url: str, store: Store) -> None:
    for campaign in ("sweep", "empty", "it's"):
        with store.write() as conn:
            key = queries.insert_campaign(conn, name=campaign, spec="", spec_hash="", dir="/d", executor="local")
            runs = [NewRun(f"lr-{9 - i}", {}, {}, str(i), i) for i in range(3 if campaign == "sweep" else 0)]
            queries.insert_runs(conn, key, runs)
    with store.read() as conn:
        told = {row.name: queries.run_names(conn, row.id) for row in queries.list_campaigns(conn)}
    assert told["sweep"] == ["lr-9", "lr-8", "lr-7"]
    assert told.pop("it's") == []  # a shell would not take it for one word
    assert read_names(url, with_runs=True) == told
    assert read_names(url, "it's", with_runs=True) == {}
    assert read_names(url, "empty", with_runs=True) == {"empty": []}
    assert read_names(url, "nowhere", with_runs=True) == {}
    assert read_names(url, with_runs=False) == {name: [] for name in told}
