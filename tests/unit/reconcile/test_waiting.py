"""What a watch waits for once a pass was possible, and what ends it at once before that."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import NoReturn

import pytest

from dscampaign.db.errors import SchemaMismatch, StoreIncomplete, StoreMissing, StoreReadOnly, StoreUnreachable
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.reconcile import loop
from dscampaign.orchestrator.reconcile.loop import Pass
from dscampaign.tests.support.world_on_disk import World


@pytest.fixture
def world(world: World) -> World:
    world.record(matrix={"depth": [1]})
    return world


def raising(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


PASSING = [
    (StoreMissing("deleted or replaced"), StoreMissing),
    (StoreUnreachable("read-only"), StoreUnreachable),
    (StoreReadOnly("permission denied for table lease"), StoreReadOnly),
    (Unreachable("the folder is away"), Unreachable),
    (OSError(errno.EROFS, os.strerror(errno.EROFS), "/shared"), Unreachable),
    (FileNotFoundError(errno.ENOENT, "No such file", "prologue.sh"), Unreachable),
    (ModuleNotFoundError("No module named 'submitit'"), Unreachable),
]


@pytest.mark.parametrize(
    ("where", "error", "seen_as"),
    [
        *(("take_lease", error, type(error)) for error in (StoreMissing("deleted"), StoreUnreachable("read-only"))),
        *((where, error, seen_as) for where in ("drain", "observe", "act") for error, seen_as in PASSING),
    ],
)
def test_a_begun_watch_waits_for_outages_to_end(
    world: World, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception, seen_as: type[Exception]
) -> None:
    watched = world.reconciler().watch(sleep=lambda _: None)
    assert isinstance(next(watched), Pass)
    world.run_jobs()
    with monkeypatch.context() as patch:
        patch.setattr(loop, where, raising(error))
        assert [type(next(watched)) for _ in range(3)] == [seen_as] * 3
    assert [type(done) for done in watched][-1] is Pass
    assert world.states() == {"depth-1": "completed"}
    assert world.ran == [("depth-1", 1)]


@pytest.mark.parametrize(("error", "seen_as"), PASSING, ids=[str(error) for error, _ in PASSING])
def test_before_a_pass_was_possible_it_ends_the_watch(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception, seen_as: type[Exception]
) -> None:
    monkeypatch.setattr(loop, "observe", raising(error))
    with pytest.raises(seen_as):
        next(world.reconciler().watch(sleep=lambda _: None))


def test_lasting_errors_end_the_watch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = world.reconciler().watch(sleep=lambda _: None)
    assert isinstance(next(watched), Pass)
    with world.store.write() as conn:  # another version upgrades the store
        conn.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    world.run_jobs()
    with pytest.raises(SchemaMismatch) as caught:
        next(watched)
    assert "use the version that upgraded it" in caught.value.hint
    assert world.states() == {"depth-1": "queued"}


def test_a_store_that_is_restored_in_place_is_waited_for_ever_longer_up_to_a_minute(world: World) -> None:
    rests: list[float] = []
    watched = world.reconciler().watch(sleep=rests.append)
    assert isinstance(next(watched), Pass)
    world.run_jobs()
    for table in ("alembic_version", "lease"):
        with world.store.write() as conn:
            conn.exec_driver_sql(f"ALTER TABLE {table} RENAME TO aside")
        rests.clear()
        assert [type(next(watched)) for _ in range(8)] == [StoreIncomplete] * 8
        assert rests[1:] == [20.0, 40.0, *[60.0] * 5]
        with world.store.write() as conn:
            conn.exec_driver_sql(f"ALTER TABLE aside RENAME TO {table}")
        assert isinstance(next(watched), Pass)
    assert all(isinstance(done, Pass) for done in watched)
    assert world.states() == {"depth-1": "completed"}
