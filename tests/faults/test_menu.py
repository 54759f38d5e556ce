"""The menu of faults: each is one named test, whose docstring says when it passes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MENU = {
    "SIGSTOP of slurmctld around sbatch": "faults/test_machines.py::test_slurmctld_stopped_around_sbatch",
    "kill -9 of the reconciler at every effect": (
        "faults/test_reconciler.py::test_kill_9_of_the_reconciler_at_every_effect"
    ),
    "two reconcilers at once": "faults/test_reconciler.py::test_two_reconcilers_at_once",
    "a leader stopped past its lease": "faults/test_reconciler.py::test_a_leader_stopped_past_its_lease",
    "kill -9 of slurmd": "faults/test_machines.py::test_kill_9_of_slurmd",
    "kill -9 of the launcher": "faults/test_attempt.py::test_a_launcher_killed",
    "kill -9 of the agent": "faults/test_attempt.py::test_an_agent_killed",
    "a rank killed with 9, 6, 11": "faults/test_attempt.py::test_a_rank_killed_by_a_signal",
    "a real allocation failure": (
        "integration/slurm/test_main_job.py::test_out_of_memory_is_tried_smaller_with_the_same_global_batch"
    ),
    "--mem overrun": "faults/test_attempt.py::test_more_memory_than_the_job_asked_for",
    "slurmdbd away, slurmdbd lagging": "faults/test_machines.py::test_slurmdbd_away_and_lagging",
    "preemption ten times": "faults/test_attempt.py::test_ten_preemptions",
    "a time limit of one minute": (
        "integration/slurm/test_main_job.py::test_a_run_that_is_killed_by_its_time_limit_finishes_on_resume"
    ),
    "a truncated checkpoint": "faults/test_attempt.py::test_a_truncated_checkpoint",
    "a kill in the midst of a save": "faults/test_attempt.py::test_a_kill_in_the_midst_of_a_save",
    "a full disk": "faults/test_machines.py::test_a_full_disk",
    "a lost state directory of Slurm": "faults/test_machines.py::test_a_lost_state_directory_of_slurm",
    "a bad configuration twelve times": "faults/test_attempt.py::test_a_bad_configuration_twelve_times",
    "a clock one hour off": "faults/test_reconciler.py::test_a_clock_one_hour_off",
    "the database away": "faults/test_store_away.py::test_no_step_is_missing_after_the_database_was_away",
    "a submitter killed before it knew the job id": (
        "faults/test_submission.py::test_a_submitter_killed_before_it_knew_the_job_id_is_not_repeated"
    ),
}


@pytest.mark.parametrize(("fault", "test"), [pytest.param(*item, id=item[0]) for item in MENU.items()])
def test_every_fault_is_a_test(fault: str, test: str) -> None:
    file, name = test.split("::")
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    assert [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name], fault
