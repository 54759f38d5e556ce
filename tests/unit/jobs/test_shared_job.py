"""A job that runs several attempts in turn: which is next, and what it gives back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dscampaign.files.private_files import make_private
from dscampaign.jobs.agent.evidence import EXIT_NOT_MINE
from dscampaign.jobs.agent.shared_job import AttemptQueue, lane_options
from dscampaign.jobs.shared.job_array import JobRecord, close_tasks, job_record, make_closed
from dscampaign.jobs.shared.layout import AttemptPaths

JOB = "7_0"
PLENTY_S = 1e6


class Folder:
    """The shared folder with a batch of four attempts."""

    def __init__(self, folder: Path) -> None:
        self.batch = folder / "batch"
        make_private(self.batch)
        make_closed(self.batch)
        self.attempts = [AttemptPaths(folder / f"r{index}" / "g0001") for index in range(4)]
        for paths in self.attempts:
            make_private(paths.dir)

    def turns(self, left_s: float = PLENTY_S, job_id: str = JOB, likely_s: float | None = None) -> AttemptQueue:
        """The job's first start, or another."""
        same = {"nodes": 1, "likely_s": likely_s}
        known = {index: {"attempt_dir": str(paths.dir), **same} for index, paths in enumerate(self.attempts)}
        return AttemptQueue(self.batch, job_id, known, lambda: left_s)

    def claim(self, index: int, job_id: str = JOB) -> None:
        """An agent has begun."""
        self.attempts[index].claim.write_text(json.dumps({"job_id": job_id}))

    def end(self, index: int, ended_by: str = "") -> None:
        """Its agent has left an outcome."""
        self.attempts[index].outcome(0).write_text(json.dumps({"ended_by": ended_by}))

    def record(self, job_id: str = JOB) -> JobRecord:
        """What the reconciler reads."""
        return JobRecord.read(job_record(self.batch, job_id)) or JobRecord()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def run(folder: Folder, turns: AttemptQueue, *, exit_code: int = 0, lasted_s: float = 5.0, ended_by: str = "") -> bool:
    """The next attempt, from claim to outcome."""
    index = turns.next()
    assert index is not None
    folder.claim(index)
    folder.end(index, ended_by)
    return turns.ended(index, exit_code, lasted_s, 1.0)


def test_what_fails_ends_alone(folder: Folder) -> None:
    turns = folder.turns()
    assert all(run(folder, turns, exit_code=code) for code in (1, 0, 137, 0))
    assert turns.next() is None
    assert (folder.record().begun, folder.record().returned) == ((0, 1, 2, 3), ())
    assert {index: end.exit for index, end in folder.record().ended.items()} == {0: 1, 1: 0, 2: 137, 3: 0}


def test_closed_and_taken_attempts_are_passed_over(folder: Folder) -> None:
    close_tasks(folder.batch, [0])
    folder.claim(1, "revoked-token")
    folder.claim(2, "8_0")
    assert folder.turns().next() == 3
    assert folder.record().begun == (3,)


def test_an_attempt_that_another_job_has_is_no_reason_to_end(folder: Folder) -> None:
    turns = folder.turns()
    assert turns.next() == 0
    folder.claim(0, "8_0")
    assert turns.ended(0, EXIT_NOT_MINE, 1.0, 1.0)
    assert turns.next() == 1
    assert not folder.record().ended


@pytest.mark.parametrize("ended_by", ["signal", "stop"])
def test_a_signal_to_the_job_ends_it(folder: Folder, ended_by: str) -> None:
    """Slurm's account of the job decides on the attempt that ran, and on those that did not."""
    assert not run(folder, folder.turns(), exit_code=1, ended_by=ended_by)
    assert (folder.record().begun, folder.record().ended, folder.record().returned) == ((0,), {}, ())


def test_an_attempt_that_was_closed_ends_alone(folder: Folder) -> None:
    turns = folder.turns()
    assert turns.next() == 0
    folder.claim(0)
    close_tasks(folder.batch, [0])
    folder.end(0, "signal")
    assert turns.ended(0, 1, 5.0, 1.0)
    assert turns.next() == 1


def test_the_first_begins_with_any_time_and_the_next_only_with_enough(folder: Folder) -> None:
    turns = folder.turns(left_s=4.0)
    assert run(folder, turns)
    assert turns.next() is None
    assert folder.record().returned == (1, 2, 3)
    assert "no time" in folder.record().reason


@pytest.mark.parametrize(
    ("likely_s", "lasted_s", "fits"),
    [(60.0, 1.0, False), (40.0, 1.0, True), (40.0, 100.0, False), (None, 100.0, False), (None, 1.0, True)],
)
def test_the_next_begins_if_its_forecast_fits(
    folder: Folder, likely_s: float | None, lasted_s: float, *, fits: bool
) -> None:
    """However early the first ended; if that took longer than its forecast, so will the next."""
    turns = folder.turns(left_s=50.0, likely_s=likely_s)
    assert run(folder, turns, lasted_s=lasted_s)
    assert (turns.next() == 1) is fits


def test_a_step_that_never_began_gives_back_its_own_attempt_too(folder: Folder) -> None:
    turns = folder.turns()
    assert turns.next() == 0
    assert not turns.ended(0, 1, 1.0, 1.0)
    assert folder.record().returned == (0, 1, 2, 3)


def test_a_second_start_goes_on_where_the_first_was_ended(folder: Folder) -> None:
    """The agent of the attempt that ran then leaves a record."""
    first = folder.turns()
    assert run(folder, first)
    assert first.next() == 1
    folder.claim(1)
    folder.end(1, "signal")
    second = folder.turns()
    assert second.next() == 1
    assert second.ended(1, EXIT_NOT_MINE, 1.0, 1.0)
    assert second.next() == 2


@pytest.mark.parametrize(
    ("env", "part"),
    [
        ({"SLURM_CPUS_ON_NODE": "30", "SLURM_MEM_PER_NODE": "1000"}, {"--cpus-per-task=7", "--mem=250M"}),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_MEM_PER_CPU": "1000"}, {"--cpus-per-task=2"}),  # which decides on memory
    ],
)
def test_a_lane_has_an_equal_part_of_the_node(env: dict[str, str], part: set[str]) -> None:
    assert set(lane_options(env, 4, 2)) == {"--exact", "--nodes=1", "--ntasks=1", "--gpus-per-node=2", *part}
    assert lane_options(env, 1, 8) == []
