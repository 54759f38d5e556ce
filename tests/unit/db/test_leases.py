"""One leader at a time, by the database's clock."""

import time

import pytest

from dscampaign.db import leases, queries
from dscampaign.db.errors import StaleLease
from dscampaign.db.store import Store
from dscampaign.tests.support.worlds import new_campaign

_EXPIRED_S = -1.0
"""A time to live that is over at once: nobody has to wait in a test."""


def _acquire(store: Store, holder: str, ttl_s: float = 60.0) -> int | None:
    with store.write() as conn:
        return leases.acquire_lease(conn, "reconciler", holder, ttl_s)


def test_the_second_holder_waits_until_the_first_runs_out(store: Store) -> None:
    assert _acquire(store, "a") == 1
    assert _acquire(store, "b") is None
    assert _acquire(store, "a", _EXPIRED_S) == 1  # a renewal keeps its epoch
    assert _acquire(store, "b") == 2
    assert _acquire(store, "a") is None


def test_writes_of_a_lapsed_leader_are_refused(store: Store) -> None:
    epoch = _acquire(store, "a", _EXPIRED_S)
    assert epoch is not None
    assert _acquire(store, "b") == epoch + 1
    with pytest.raises(StaleLease, match="from epoch 1 to 2"):
        _record_campaign(store, epoch)
    with store.read() as conn:
        assert queries.list_campaigns(conn) == []


def test_a_lapsed_lease_stays_good_until_it_is_taken(store: Store) -> None:
    epoch = _acquire(store, "a", _EXPIRED_S)
    assert epoch is not None
    with store.write() as conn:
        leases.renew_lease(conn, "reconciler", epoch, 60.0)


def test_a_released_lease_is_free_at_once(store: Store) -> None:
    epoch = _acquire(store, "a")
    assert epoch is not None
    with store.write() as conn:
        assert leases.release_lease(conn, "reconciler", epoch)
    assert _acquire(store, "b") == 2
    with store.write() as conn:
        assert not leases.release_lease(conn, "reconciler", epoch)
        found = leases.read_lease(conn, "reconciler")
        assert leases.read_lease(conn, "other") is None
    assert found is not None
    assert (found.holder, found.epoch) == ("b", 2)


def test_a_lease_from_before_a_clock_change_can_be_taken(store: Store) -> None:
    assert _acquire(store, "a", 3600.0) == 1
    assert _acquire(store, "b") == 2
    assert _acquire(store, "c") is None


def test_the_hosts_clock_does_not_matter(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _acquire(store, "a", 60.0) == 1
    an_hour_on_s = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: an_hour_on_s)
    assert _acquire(store, "b") is None


def _record_campaign(store: Store, epoch: int) -> None:
    with store.write() as conn:
        new_campaign(conn)
        leases.renew_lease(conn, "reconciler", epoch, 60.0)
