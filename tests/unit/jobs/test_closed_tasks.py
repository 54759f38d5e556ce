"""Tasks of an array that no job may begin any more."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from dscampaign.files.private_files import make_private
from dscampaign.jobs.agent.agent import Agent
from dscampaign.jobs.agent.evidence import EXIT_NOT_MINE
from dscampaign.jobs.agent.node import Node
from dscampaign.jobs.shared.job_array import close_tasks, is_closed, make_closed
from dscampaign.jobs.shared.layout import closed_file
from dscampaign.tests.support.attempt import make_payload


def test_tasks_stay_closed_and_others_open(tmp_path: Path) -> None:
    make_closed(tmp_path)
    assert not is_closed(tmp_path, 1)
    close_tasks(tmp_path, [11, 3])
    close_tasks(tmp_path, [3, 4])
    assert [task for task in range(20) if is_closed(tmp_path, task)] == [3, 4, 11]
    assert closed_file(tmp_path).stat().st_mode & 0o777 == 0o600


def test_what_a_full_disk_cuts_off_is_an_error_and_closes_no_other_task(tmp_path: Path) -> None:
    make_closed(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len("\n100\n101\n1"), limits[1]))  # a write that fits in part is cut
    try:
        with pytest.raises(OSError, match="large"):
            close_tasks(tmp_path, [100, 101, 102])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    close_tasks(tmp_path, [7])
    assert is_closed(tmp_path, 7)
    assert not is_closed(tmp_path, 17)


def test_a_closed_task_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    payload = make_payload(tmp_path)
    make_private(Path(payload.attempt_dir))
    agent = Agent(payload, Node("7_0", 0, "n0", ""), closed=lambda: True)
    assert agent.run() == EXIT_NOT_MINE
    assert "is over" in capsys.readouterr().err
    assert sorted(path.name for path in Path(payload.attempt_dir).iterdir()) == ["claim"]
