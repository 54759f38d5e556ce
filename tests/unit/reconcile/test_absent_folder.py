"""The shared folder is away on the login node: nothing is judged by its absence, and nothing created in its place."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from dscampaign.db.store import Store
from dscampaign.orchestrator.errors import EXIT_UNREACHABLE, Unreachable, UserError
from dscampaign.tests.support.world_on_disk import World


class SharedFolder:
    """A folder that can be away, as a file system that is not mounted: in its place lies an empty folder, or none."""

    def __init__(self, path: Path, *, mount_point: bool = True) -> None:
        self.path, self._hidden, self._mount_point = path, path.with_name("hidden"), mount_point
        self.traces: list[Path] = []
        path.mkdir()

    def vanish(self) -> None:
        self.path.rename(self._hidden)
        if self._mount_point:
            self.path.mkdir()

    def come_back(self) -> None:
        """Notes what was created in its place."""
        if not self._hidden.exists():
            return
        if self.path.exists():
            self.traces += self.path.rglob("*")
            self.path.rename(self.path.with_name(f"mount-point-{uuid.uuid4().hex}"))
        self._hidden.rename(self.path)


class Opened:
    """Calls back at the n-th time that Python opens, makes, renames or lists something in a folder."""

    def __init__(self) -> None:
        self._below, self._left = "", 0
        self._then: Callable[[], None] = lambda: None
        sys.addaudithook(self._hook)

    @contextmanager
    def at(self, number: int, below: Path, then: Callable[[], None]) -> Iterator[None]:
        self._below, self._left, self._then = str(below), number, then
        try:
            yield
        finally:
            self._below = ""

    def soon(self, number: int, then: Callable[[], None]) -> None:
        """The same again, so many times later."""
        self._left, self._then = number, then

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._below or not event.startswith(("open", "os.mkdir", "os.rename", "os.link", "os.listdir", "glob")):
            return
        if args and isinstance(args[0], str | os.PathLike) and os.fspath(args[0]).startswith(self._below):
            self._left -= 1
            if self._left == 0:
                below, self._below = self._below, ""
                self._then()
                self._below = below


@pytest.fixture(scope="module")
def opened() -> Opened:
    return Opened()


@contextmanager
def shared_world(folder: Path, *, mount_point: bool = True) -> Iterator[tuple[World, SharedFolder]]:
    """A world whose store is not in the shared folder, as with PostgreSQL."""
    shared = SharedFolder(folder / "shared", mount_point=mount_point)
    world = World(shared.path, Store.open(f"sqlite:///{folder}/campaign.db", create=True))
    yield world, shared
    world.store.close()


@pytest.fixture(params=[True, False], ids=["empty", "missing"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[World, SharedFolder]]:
    with shared_world(tmp_path, mount_point=request.param) as made:
        yield made


def test_jobs_that_ended_while_the_folder_was_away_are_not_executed_again(world: tuple[World, SharedFolder]) -> None:
    made, shared = world
    made.record()
    made.run_pass()
    made.run_jobs()
    before = made.runs()
    shared.vanish()
    for _ in range(3):
        with pytest.raises(Unreachable, match="missing or empty") as away:
            made.run_pass()
        assert away.value.exit_code == EXIT_UNREACHABLE
    assert made.runs() == before
    shared.come_back()
    assert shared.traces == []
    assert made.run_pass().settled or made.run_pass().settled
    assert made.states() == {"depth-1": "completed", "depth-2": "completed"}
    assert made.ran == [("depth-1", 1), ("depth-2", 1)]


@pytest.mark.parametrize("when", ["submitting", "judging"])
@pytest.mark.parametrize(
    ("pause", "every"), [(None, 1), (2, 4), *(pytest.param(pause, 1, marks=pytest.mark.nightly) for pause in (1, 2, 5))]
)
def test_the_folder_vanishes_in_the_middle_of_a_pass(opened: Opened, when: str, pause: int | None, every: int) -> None:
    """At any moment, until the pass is over or for a short time."""
    memory = Path("/dev/shm")
    number, vanished = 1 - every, True
    while vanished:
        number, vanished = number + every, False
        with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder, shared_world(Path(folder)) as made:
            world, shared = made
            world.record(matrix={"depth": [1]})
            if when == "judging":
                world.run_pass()
                world.run_jobs()

            def vanish(shared: SharedFolder = shared) -> None:
                nonlocal vanished
                vanished = True
                shared.vanish()
                if pause:
                    opened.soon(pause, shared.come_back)

            with opened.at(number, shared.path, vanish):
                try:
                    world.run_pass()
                except Unreachable:
                    assert vanished
            shared.come_back()
            assert shared.traces == [], number
            world.settle()
            assert world.states() == {"depth-1": "completed"}, number
            assert len(world.ran) == 1, (number, world.ran)
            assert [a.failure_class for a in world.attempts("depth-1")][:-1] in ([], ["lost"]), number
    assert number > 5


def test_a_folder_that_is_lost_for_good_is_begun_anew_by_its_user(tmp_path: Path) -> None:
    with shared_world(tmp_path) as (world, shared):
        world.record()
        world.run_pass()
        shared.vanish()
        with pytest.raises(Unreachable, match="missing or empty") as lost:
            world.run_pass()
        assert f"mkdir -p {world.paths.dir}" in (lost.value.hint or "")
        world.paths.dir.mkdir()
        world.record()
        assert world.run_pass().troubles == ()


def test_the_folder_of_another_campaign_of_that_name_is_not_taken_for_it(tmp_path: Path) -> None:
    with shared_world(tmp_path) as (world, _):
        world.record()
        world.run_pass()
        other = World(world.folder, Store.open(f"sqlite:///{tmp_path}/other.db", create=True))
        with pytest.raises(UserError, match="belongs to another campaign c") as refused:
            other.record()
        assert f"rm -r {world.paths.dir}" in (refused.value.hint or "")
        assert world.run_pass().troubles == ()
        world.paths.marker.write_text(json.dumps({"campaign": "c", "created_s": 1.0}))
        with pytest.raises(Unreachable, match="belongs to another campaign c"):
            world.run_pass()
        with pytest.raises(Unreachable, match="belongs to another campaign c"):
            world.record()
        other.store.close()


@pytest.mark.parametrize("content", ["", "{", '{"campaign'])
def test_a_damaged_marker_is_written_anew_by_a_submission(tmp_path: Path, content: str) -> None:
    with shared_world(tmp_path) as (world, _):
        world.record()
        world.run_pass()
        world.paths.marker.write_text(content)
        with pytest.raises(Unreachable, match="damaged"):
            world.run_pass()
        world.record()
        assert json.loads(world.paths.marker.read_text())["campaign"] == "c"
        world.settle()
        assert world.ran == [("depth-1", 1), ("depth-2", 1)]


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with shared_world(tmp_path) as (world, _):
        with monkeypatch.context() as patch:
            patch.setattr("dscampaign.orchestrator.reconcile.campaign_folder.write_atomically", full)
            with pytest.raises(Unreachable, match="no free space"):
                world.record()
        world.record()  # nothing was recorded before
        world.settle()
        assert world.states() == {"depth-1": "completed", "depth-2": "completed"}
