"""Success, an orderly stop, and what Slurm or an end that was asked for explains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dscampaign.jobs.agent.evidence import EXIT_NOT_MINE, LogLine, RankEnd
from dscampaign.orchestrator.executors.setup_lines import SetUpFailure
from dscampaign.tests.support.policy_world import job, log_lines, outcome, rank_error
from dscampaign.tests.support.verdicts import KILLED, NCCL, judge, meaning, raised

# -- success and stop ------------------------------------------------------------------------------------------


def test_success_is_the_target_step_and_clean_exits() -> None:
    assert judge(outcome(), state="COMPLETED").kind == "completed"
    assert judge(outcome(), state=None).kind == "completed"
    assert judge(outcome(last_step=99), state="COMPLETED").kind == "crash"
    assert judge(outcome(last_step=None), state="COMPLETED").kind == "crash"


def test_completed_by_slurm_s_word_alone_is_no_success() -> None:
    assert judge(state="COMPLETED").kind == "crash"
    assert judge(outcome(), nodes=2, state="COMPLETED").kind == "crash"
    assert judge(outcome(launcher_exit=None, ended_by="rendezvous"), state="COMPLETED").kind != "completed"


def test_a_launcher_that_exits_0_after_a_signal_is_no_success() -> None:
    dead = outcome(RankEnd(0, None, None), RankEnd(1, 0, None), launcher_exit=0, last_step=40)
    verdict = judge(dead, state="COMPLETED")
    assert verdict.kind == "crash"
    assert "rank 0" in verdict.reason


def test_a_script_of_one_s_own_decides_when_it_is_complete() -> None:
    own: dict[str, Any] = {"steps_decide": False}
    assert judge(outcome(last_step=None), target_step=None, **own).kind == "completed"
    assert judge(outcome(last_step=100), **own).reason == ""
    assert judge(outcome(last_step=None), **own).kind == "completed"  # a script that reports nothing
    assert judge(outcome(launcher_exit=1, last_step=7), **own).kind == "crash"


def test_a_script_that_leaves_before_the_target_step_completes_early() -> None:
    own: dict[str, Any] = {"steps_decide": False}
    early = judge(outcome(last_step=7, step_reached=7), **own)
    assert (early.kind, early.reason) == ("completed_early", "the script exited with 0 at step 7 of 100")
    silent = outcome(last_step=None)
    assert judge(silent, **own).kind == "completed"
    late = judge(silent, reached_before=7, **own)
    assert (late.kind, late.reason) == (early.kind, "the script exited with 0 and no step was read after 7 of 100")
    assert judge(outcome(last_step=90, step_reached=100), **own).kind == "completed"  # it reports every tenth step
    assert judge(outcome(last_step=7, target_step=50), target_step=50, **own).kind == "completed_early"


def test_of_a_rank_that_ends_itself_the_last_line_is_the_proof() -> None:
    texts = ("step 3 loss 2.5", "shard 7 does not match its index", "")
    of_rank = tuple(LogLine("1_rank1.log", number, text) for number, text in enumerate(texts))
    of_launcher = log_lines("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:")
    ends = RankEnd(0, None, None), RankEnd(1, 3, None)
    verdict = judge(outcome(*ends, launcher_exit=1, last_step=3, lines=(*of_rank, *of_launcher)))
    assert (verdict.kind, verdict.reason) == ("crash", "rank 1 exited with 3: shard 7 does not match its index")
    assert verdict.line == of_rank[1]


def test_arguments_that_a_script_refuses_are_a_mistake_by_its_exit_code() -> None:
    left = outcome(RankEnd(0, 2, None), RankEnd(1, None, None), launcher_exit=2, last_step=None)
    assert judge(left).kind == "deterministic"
    assert judge(replace(left, last_step=3)).kind == "crash"


def test_an_error_of_the_launcher_has_a_place_at_which_it_may_recur() -> None:
    lines = log_lines(
        "Traceback (most recent call last):",
        '  File "/env/accelerate/commands/config/config_args.py", line 45, in load_config_from_file',
        "FileNotFoundError: The passed configuration file `own.yaml` does not exist.",
    )
    verdict = judge(outcome(RankEnd(0, None, None), launcher_exit=1, last_step=None, lines=lines))
    assert (verdict.kind, bool(verdict.place)) == ("crash", True)


@pytest.mark.parametrize(("state", "kind"), [("PREEMPTED", "preempted"), ("CANCELLED", "cancelled")])
def test_a_script_that_exits_with_0_when_slurm_ends_it_has_not_completed(state: str, kind: str) -> None:
    ended = outcome(last_step=7, ended_by="signal", ending_s=1.0)
    assert judge(ended, state=state, steps_decide=False).kind == kind


def test_a_run_that_diverged_and_has_no_step_left_to_make_stays_so() -> None:
    """After a retry its script finds the checkpoint of the last step, and exits with 0."""
    before: dict[str, Any] = {"steps_decide": False, "diverged_before": ("loss", 12)}
    verdict = judge(outcome(last_step=None), **before)
    assert verdict.kind == "diverged"
    assert verdict.reason == "loss is not finite since step 12; this attempt made no further step"
    assert judge(outcome(last_step=100), **before).kind == "completed"  # it went on from an earlier checkpoint


def test_a_job_that_slurm_requeued_is_no_crash() -> None:
    """Its second start finds the attempt taken, by itself."""
    again = job("FAILED", exit_code=f"{EXIT_NOT_MINE}:0")
    ended = judge(outcome(RankEnd(0, None, None), launcher_exit=-15, ended_by="signal"), state=again)
    assert (ended.kind, ended.reason) == ("preempted", "Slurm ended the job and started it again")
    assert judge(raised("builtins.RuntimeError", "x"), state=again).kind == "crash"


@pytest.mark.parametrize("state", [None, "FAILED", "PENDING"])
def test_that_slurm_requeued_a_job_is_known_without_its_exit_code(state: str | None) -> None:
    """As where there is no slurmdbd: its second start has said so, or it waits for that."""
    interrupted = outcome(RankEnd(0, None, None), launcher_exit=-15, ended_by="signal")
    unheard = replace(interrupted, ended_by="")  # the ranks were gone before the signal came to their agent
    for left in ([interrupted], [unheard], []):  # a node that failed leaves nothing
        verdict = judge(*left, state=state, started_again=True)
        assert (verdict.kind, verdict.reason) == ("preempted", "Slurm ended the job and started it again")
    assert judge(raised("builtins.RuntimeError", "x"), state=state, started_again=True).kind == "crash"


def test_a_reported_loss_that_is_not_finite_is_a_divergence() -> None:
    lost = ("loss", 12)
    verdict = judge(outcome(diverged_at=lost), steps_decide=False)
    assert (verdict.kind, verdict.reason) == ("diverged", "loss is not finite since step 12")
    assert verdict.line
    assert verdict.line.text == "loss is not finite from step 12 to step 100"
    assert judge(outcome(diverged_at=lost, last_step=20), steps_decide=False).kind == "diverged"  # nor early
    assert judge(outcome(diverged_at=("loss", 39), last_step=40, ended_by="stop")).kind == "diverged"
    assert judge(outcome(diverged_at=("loss", 40), last_step=40, ended_by="stop")).kind == "stopped"  # may recover
    assert judge(outcome(diverged_at=lost, last_step=40, ended_by="signal"), state="PREEMPTED").kind == "preempted"


def test_host_memory_is_raised_where_no_smaller_micro_batch_can_be_tried() -> None:
    killed = outcome(RankEnd(0, None, None), oom_kills=1, memory_peak_bytes=570 * 2**20)
    asked: dict[str, Any] = {"state": "OUT_OF_MEMORY", "on_cpu": True, "host_memory": ("slurm.mem", "500M")}
    script = judge(killed, steps_decide=False, resizable=False, **asked)
    assert (script.kind, script.hint) == ("host_oom", "raise slurm.mem (asked 500M, used 570M)")
    assert judge(killed, **asked).kind == "oom"
    unlimited = judge(killed, resizable=False, **asked | {"host_memory": ("slurm.mem", "")})
    assert unlimited.hint == "set slurm.mem (used 570M)"


@pytest.mark.parametrize("target", [100, None])
def test_an_orderly_stop_resumes_later(target: int | None) -> None:
    verdict = judge(outcome(last_step=40, ended_by="stop"), target_step=target, steps_decide=False)
    assert (verdict.kind, verdict.reason) == ("stopped", "stopped after a checkpoint at step 40")


@pytest.mark.parametrize("ended_by", ["stop", "", "teardown", "peer"])
def test_exit_85_means_stopped_also_where_the_launcher_ended_the_slower_ranks(ended_by: str) -> None:
    left = outcome(RankEnd(0, 85, None), RankEnd(1, None, None), launcher_exit=85, ended_by=ended_by, last_step=40)
    assert judge(left).kind == "stopped"


# -- Slurm's word ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("PREEMPTED", "preempted"),
        ("NODE_FAIL", "node"),
        ("BOOT_FAIL", "node"),
        ("LAUNCH_FAILED", "node"),
        ("CANCELLED", "cancelled"),
        ("TIMEOUT", "time_limit"),
        ("DEADLINE", "time_limit"),
        ("OUT_OF_MEMORY", "host_oom"),
        ("FAILED", "crash"),
        ("COMPLETED", "crash"),
    ],
)
def test_a_job_without_an_outcome_is_what_slurm_says(state: str, kind: str) -> None:
    assert judge(state=state).kind == kind


def test_an_error_before_the_time_limit_is_the_cause_and_an_echo_is_not() -> None:
    assert meaning(judge(raised("builtins.TypeError", "no", ended_by="signal"), state="TIMEOUT")) == "deterministic"
    torn = raised("torch.distributed.DistBackendError", NCCL, ended_by="signal", last_step=40)
    assert judge(torn, state="TIMEOUT").kind == "time_limit"
    worker = "DataLoader worker (pid 1234) is killed by signal: Terminated."
    assert judge(raised("builtins.RuntimeError", worker, last_step=40), state="TIMEOUT").kind == "time_limit"


def test_an_error_just_before_the_end_of_a_job_at_its_limit_is_an_answer_to_slurm_s_signal() -> None:
    """Where its agent did not come to note the signal."""
    ended_s = outcome().ended_s

    def left(state: str, before_s: float) -> str:
        error = rank_error(0, "builtins.ValueError", "closed", ts=ended_s - before_s)
        return meaning(judge(outcome(error, KILLED[1], last_step=None), state=state))

    assert left("TIMEOUT", 5) == "time_limit"
    assert left("TIMEOUT", 300) == left("FAILED", 5) == "deterministic"


def test_what_was_being_ended_did_not_die_by_itself() -> None:
    wait = rank_error(0, "torch.distributed.DistStoreError", "wait timeout after 300000ms, keys: /a")
    torn = outcome(RankEnd(2, None, None, gone_s=79.0), launcher_exit=247, ending_s=73.0, node_rank=1, last_step=None)
    assert judge(outcome(wait), torn).kind == "hang"
    killed = replace(torn, ranks=(RankEnd(2, None, None, gone_s=70.0),))
    assert judge(outcome(wait), killed).kind == "crash"


# -- answers to being ended ------------------------------------------------------------------------------------


def test_what_a_rank_says_after_it_was_told_to_end_is_no_cause() -> None:
    late = outcome(
        rank_error(0, "builtins.ValueError", "closed", ts=50.2), ended_by="signal", ending_s=50.0, last_step=9
    )
    assert judge(late, state="TIMEOUT").kind == "time_limit"
    assert judge(late, state="FAILED").kind == "crash"
    at_once = replace(late, ending_s=50.9)  # Slurm's signal reached the rank before the agent
    assert judge(at_once, state="TIMEOUT").kind == "time_limit"
    before = replace(late, ending_s=60.0, last_step=None)
    assert meaning(judge(before, state="TIMEOUT")) == "deterministic"


def test_a_node_that_was_ended_because_of_another_says_nothing_of_its_own() -> None:
    ended = outcome(rank_error(0, "builtins.KeyError", "'x'", ts=31.0), ended_by="peer", ending_s=30.0)
    root = outcome(rank_error(2, "torch.OutOfMemoryError", "CUDA out of memory.", ts=20.0), node_rank=1, host="n2")
    assert judge(ended, root).kind == "oom"


@pytest.mark.parametrize(("groups", "alone"), [((0, 0), True), ((1, 1), True), ((2, 2), False), ((None, 0), False)])
def test_ranks_that_met_no_others_did_not_just_fail_in_their_clean_up(
    groups: tuple[int | None, ...], alone: bool
) -> None:
    """Two ranks in good order are two trainings of one; of one that fails nothing was made."""
    in_order = judge(
        outcome(*(RankEnd(rank, 0, None, group=group) for rank, group in enumerate(groups)), last_step=100)
    )
    assert in_order.kind == "completed"
    assert in_order.reason == ("its 2 ranks never formed a group of 2: each may have trained alone" if alone else "")
    hung_up = {"type": "torch.distributed.DistBackendError", "message": "Connection closed by peer", "ts": 5.0}
    ends = RankEnd(0, 0, None, group=groups[0]), RankEnd(1, 1, hung_up, group=groups[1])
    failed = judge(outcome(*ends, launcher_exit=1, last_step=100))
    assert (failed.kind == "completed") is (groups == (2, 2))


# -- before anything ran ---------------------------------------------------------------------------------------

FAILED_LINE = SetUpFailure(2, "module load cuda/99.9", 127, "n1")
SAID = log_lines("", "/spool/slurm_script: line 40: module: command not found", "")


def test_a_failed_line_of_the_set_up_is_told_with_its_number_and_the_shell_s_words() -> None:
    verdict = judge(nodes=2, set_up=FAILED_LINE, agent_lines=SAID)
    assert (verdict.kind, verdict.rule, verdict.host) == ("crash", "set-up", "n1")
    assert verdict.reason == "line 2 of `setup` ended with 127: module load cuda/99.9 (module: command not found)"
    assert verdict.line == LogLine("setup", 2, "module load cuda/99.9")
    assert verdict.place
    assert judge(state="COMPLETED", set_up=replace(FAILED_LINE, status=0)).rule == "set-up"


def test_what_slurm_cannot_start_points_at_the_node_only_where_it_has_worked() -> None:
    first, later = (
        judge(state=job("FAILED", exit_code="0:53", nodes="n7"), known_last_step=step) for step in (None, 40)
    )
    assert [(each.kind, each.rule, each.host) for each in (first, later)] == [("node", "slurm-launch", "n7")] * 2
    assert (first.place, later.place) == ("slurm-launch", "")


@pytest.mark.parametrize(
    "text",
    [
        "ch-run[27403]: error: can't bind: destination not found: /images/train/data (ch_core.c:111)",
        "slurmstepd: error: pyxis: failed to import docker image",
        "slurmstepd-n1: error: pyxis: child 47 failed with error 1\nslurmstepd-n1: error: pyxis: failed to create",
        "srun: unrecognized option '--container-image=nvcr.io#nvidia/pytorch:25.01-py3'",
        "FATAL:   could not open image /images/train.sif: failed to retrieve path: no such file or directory",
        "launcher: 1: exec: apptainer: not found",
    ],
)
def test_a_container_that_does_not_start_is_a_set_up_that_failed(text: str) -> None:
    left = outcome(RankEnd(0, None, None), RankEnd(1, None, None), lines=log_lines(*text.splitlines()))
    verdict = judge(left)
    assert (verdict.kind, verdict.rule) == ("crash", "set-up")
    assert verdict.reason == f"the container did not start: {text.splitlines()[-1]}"
    again = judge(replace(left, lines=log_lines(*text.replace("[27403]", "[9]").splitlines())))
    assert verdict.place == again.place != ""
    assert judge(left, known_last_step=40).place == ""
    down = log_lines(text.splitlines()[-1], "slurmstepd: error: pyxis: [ERROR] the registry returned 503 Unavailable")
    assert judge(replace(left, lines=down)).place == ""
    assert judge(replace(left, ranks=(RankEnd(0, 1, None, pid=7),))).rule != "set-up"
