"""Names, printed settings and quoted words that sound like an event, and events in the same words."""

from __future__ import annotations

from typing import Any

import pytest

from dscampaign.jobs.agent.evidence import LogLine, RankEnd
from dscampaign.jobs.agent.kernel_log import KernelLine
from dscampaign.orchestrator.failures import errnos
from dscampaign.orchestrator.failures.clues import Clue
from dscampaign.orchestrator.failures.log_lines import clues
from dscampaign.orchestrator.failures.words import reports_divergence, reports_waiting
from dscampaign.tests.support.policy_world import log_lines, outcome, rank_error
from dscampaign.tests.support.verdicts import KILLED, NCCL, SITE, USER, judge, judge_error, meaning

LEFT = RankEnd(0, 1, None), RankEnd(1, None, None)
HUB = (f"{SITE}/huggingface_hub/file_download.py", 1, "hf_hub_download", "")
REDUCE = (f"{SITE}/torch/distributed/distributed_c10d.py", 1, "all_reduce", "")
COUNTING = "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before? Error "

# -- lines of logs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "collective_timeout=600",
        "watchdog: timeout: 600 s",
        "using gloo with timeout 0:30:00",
        "barrier timeout at 30 min for all ranks",
        "kill stuck ranks after 30 min: enabled",
        "detect_deadlock=True nccl",
        "straggler detection for ranks: on",
        "[rank1]:[I1121 03:00:14.408 ProcessGroupNCCL.cpp:905] [Rank 1] after a timeout in a collective: abort",
        "[rank1]:[W1121 03:00:14.408 ProcessGroupNCCL.cpp:905] [Rank 1] a barrier may hang: it waited before",
    ],
)
def test_a_setting_of_a_timeout_is_no_hang(text: str) -> None:
    lines = log_lines("step 3 loss 2.5", text)
    assert judge(outcome(*KILLED, lines=lines, last_step=30, launcher_exit=245)).kind == "gpu_fault"
    assert judge(outcome(*KILLED, lines=lines, last_step=30), state="TIMEOUT").kind == "time_limit"


@pytest.mark.parametrize(
    "text",
    [
        "rank 3 timed out in all_reduce",
        "barrier timeout after 600 s on rank 2",
        "timeout reached while waiting for peers",
        "rank 2 is stuck",
        "no heartbeat from rank 3 for 900 s",
        "[rank0]:[E1121 03:00:14.408 ProcessGroupNCCL.cpp:905] Watchdog: rank 1 stalled",
    ],
)
def test_whoever_says_that_somebody_waited_hangs(text: str) -> None:
    assert reports_waiting(text)
    lines = log_lines("step 3 loss 2.5", text)
    assert judge(outcome(*KILLED, lines=lines, last_step=30, launcher_exit=245)).kind == "hang"
    assert judge(outcome(*KILLED, lines=lines, last_step=30), state="TIMEOUT").kind == "hang"


def test_a_loss_that_is_not_finite_ends_a_run_that_trained_and_left_by_itself() -> None:
    lines = log_lines("loss became NaN, stopping training (skip_nan=False)")
    assert judge(outcome(*LEFT, lines=lines, last_step=30)).kind == "diverged"
    assert judge(outcome(*KILLED, lines=lines, last_step=30, launcher_exit=247)).kind == "crash"
    assert judge(outcome(*LEFT, lines=lines, last_step=None)).kind == "crash"
    echo = rank_error(0, "torch.distributed.DistBackendError", NCCL)
    assert judge(outcome(echo, KILLED[1], lines=lines, last_step=30)).kind == "crash"


@pytest.mark.parametrize("text", ["stop_on_nan_loss: True", "abort_on_nan=True lr=1", "fail_on_inf_grad: yes"])
def test_a_switch_that_is_on_is_no_divergence(text: str) -> None:
    assert not reports_divergence(text)
    assert judge(outcome(*LEFT, lines=log_lines(text), last_step=30)).kind == "crash"


def test_a_count_of_nothing_is_no_event() -> None:
    megatron = " iteration 3/ 100 | lm loss: 6.123E+00 | grad norm: 1.2 | number of nan iterations: {} |"
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"

    def left(*texts: str) -> list[str]:
        return [clue.text for clue in clues([LogLine("t_rank0.log", n, text) for n, text in enumerate(texts, 1)])]

    assert left(error, megatron.format(0)) == []
    assert error in left(error, megatron.format(2))
    for text in ("Uncorrectable ECC errors: 0", "0 uncorrectable ECC errors", "no uncorrectable ECC errors"):
        assert judge(outcome(*KILLED, lines=log_lines(text), launcher_exit=247)).kind == "crash"
    assert judge(outcome(*KILLED, lines=log_lines("Uncorrectable ECC errors: 3"), launcher_exit=247)).kind == "gpu"


def test_flags_that_absl_does_not_know_are_a_mistake() -> None:
    lines = log_lines("FATAL Flags parsing error: Unknown command line flag 'lrr'", "Pass --helpshort to see help.")
    assert judge(outcome(*LEFT, lines=lines, last_step=None)).kind == "deterministic"


# -- the program, and what it was given ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "message", "frames"),
    [
        ("TypeError", "init_process_group() got an unexpected keyword argument 'timeout_s'", (USER, REDUCE)),
        ("KeyError", "'nccl_timeout'", (USER,)),
        ("ValueError", "DDP timeout must be positive for the process group", (USER,)),
        ("KeyError", "'proxy_host'", (USER,)),
        ("NameError", "name 'SSLContext' is not defined", (USER,)),
        ("AttributeError", "'str' object has no attribute 'siblings'", (USER, HUB)),
        ("ValueError", "unable to resolve network architecture 'gptt2'", (USER,)),
        ("OSError", "Can't load tokenizer for 'gpt2-mediun'. If you load it, make sure that it is there.", (USER,)),
        ("OSError", "Error no file named model.safetensors found in directory /models/llama.", (USER,)),
        ("ValueError", "Invalid gradient norm type 'infinity', use 'inf' or a number", (USER,)),
        ("AssertionError", "fp16 overflow_check requires fp16.enabled for training", (USER,)),
    ],
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_mistake_is_one_whatever_its_names_sound_like(kind: str, message: str, frames: Any, nodes: int) -> None:
    record = {"type": f"builtins.{kind}", "message": message, "ts": 10.0, "frames": [list(one) for one in frames]}
    ends = [RankEnd(rank, 1, record) for rank in range(nodes)]
    verdict = judge(*(outcome(end, node_rank=end.rank, host=f"n{end.rank}", last_step=None) for end in ends))
    assert meaning(verdict) == "deterministic", verdict
    assert "login node" not in verdict.hint


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("builtins.KeyError", "'models'"),
        ("json.decoder.JSONDecodeError", "Invalid control character at: line 1 column 5"),
        ("builtins.ValueError", "Error 429: Too Many Requests"),
    ],
)
def test_an_odd_answer_from_the_network_is_no_mistake(kind: str, message: str) -> None:
    assert judge_error(kind, message, USER, HUB).kind == "crash"


@pytest.mark.parametrize(
    "text",
    [
        "builtins.AssertionError: 1-bit Adam requires NCCL 2.8.3 or above, found NCCL 2.7.8",
        "builtins.RuntimeError: Unconvertible NCCL type Float8_e4m3fn",
        "builtins.RuntimeError: ProcessGroupGloo::allgather: invalid tensor type at index 0",
        "builtins.FileNotFoundError: [Errno 2] No such file or directory: '/scratch/kim/preempted-runs/train.jsonl'",
        'yaml.scanner.ScannerError: mapping values are not allowed here\n  in "/home/kim/NCCL_tuning/conf.yaml"',
    ],
)
def test_an_own_fault_is_no_echo_for_what_it_names(text: str) -> None:
    assert not Clue(LogLine("ranks/rank-0.json", 0, text)).is_cascade


@pytest.mark.parametrize(
    "message",
    [
        "NCCL Error 6: remote process exited or there was a network error",
        "Invalid peer: NCCL connection lost",
        "Gloo: unexpected end of stream",
        "Rank 1 reached monitoredBarrier, but received errors while waiting. Please check rank 0 logs",
    ],
)
def test_an_echo_stays_one_though_something_in_it_is_invalid(message: str) -> None:
    assert Clue(LogLine("ranks/rank-0.json", 0, f"builtins.RuntimeError: {message}")).is_cascade


# -- values that are not finite ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Unknown label 'nan' in column 'country' of shard 812", "crash"),
        ("could not convert string to float: 'nan?'", "crash"),
        ("column 'nan_ratio' is not in the table", "crash"),
        ("loss_mask length 4097 exceeds limit 4096", "crash"),
        ("loss history exceeds the limit of 10000 points", "crash"),
        ("expected scalar type Half but found Float for scale of dim 0", "crash"),
        ("the model's loss is NaN, it doesn't recover", "diverged"),
        ("loss must be finite, got nan", "diverged"),
        ("'loss' is nan", "diverged"),
        ("train loss: 91.2 exceeds 50", "crash"),
        ("grad_norm=1234.5 is above the threshold", "crash"),
        ("the loss scale is too small", "crash"),
    ],
)
@pytest.mark.parametrize("kind", ["ValueError", "RuntimeError"])
def test_a_value_of_training_has_left_its_range_and_no_name_has(kind: str, message: str, expected: str) -> None:
    assert judge_error(f"builtins.{kind}", message, USER, last_step=300).kind == expected


# -- devices, errnos, tools, memory --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (f"{COUNTING}802: system not yet initialized", "gpu"),
        ("CUDA driver initialization failed, you might not have a CUDA gpu.", "gpu"),
        (f"{COUNTING}999: unknown error", "gpu_fault"),
        ("CUDA error: initialization error", "gpu_fault"),
        (f"{COUNTING}2: out of memory", "oom"),
        (f"{COUNTING}804: forward compatibility was attempted on non supported HW", "deterministic"),
    ],
)
def test_what_torch_says_while_it_counts_devices(message: str, expected: str) -> None:
    assert meaning(judge_error("builtins.RuntimeError", message, USER)) == expected


@pytest.mark.parametrize(
    ("number", "of_a_file", "otherwise"),
    [(524, "storage", "crash"), (512, "storage", "crash"), (523, "storage", "crash"), (75, "crash", "crash")],
)
def test_an_errno_without_words_is_no_demand(number: int, of_a_file: str, otherwise: str) -> None:
    assert number not in errnos.FAULTS
    message = f"[Errno {number}] Unknown error {number}"
    assert judge_error("builtins.OSError", f"{message}: '/lustre/data/train.bin'", USER).kind == of_a_file
    assert judge_error("builtins.OSError", message, USER).kind == otherwise


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("make: *** [Makefile:12: all] Error 2", "deterministic"),
        ("Command 'make' returned non-zero exit status 2.", "deterministic"),
        ("/usr/bin/ld: cannot find -lcuda", "deterministic"),
        ("cc: not found", "deterministic"),
    ],
)
def test_a_tool_is_named_where_it_failed(message: str, expected: str) -> None:
    assert meaning(judge_error("builtins.RuntimeError", message, USER)) == expected


def test_a_compiler_s_worker_that_died_and_a_cache_that_others_write_are_no_mistakes() -> None:
    compiled = (f"{SITE}/torch/_inductor/compile_fx.py", 1, "compile", "")
    for message in (
        "BrokenProcessPool: A process in the process pool was terminated abruptly while the future was running.",
        "FileNotFoundError: [Errno 2] No such file or directory: '/home/kim/.triton/cache/ab12/f.cubin'",
    ):
        assert judge_error("torch._inductor.exc.InductorError", message, USER, compiled).kind == "crash"


def test_whose_memory_is_short_is_told_by_the_place_and_the_owner() -> None:
    error = "builtins.RuntimeError", "CUDA error: out of memory\nCompile with ..."
    pinning = (f"{SITE}/deepspeed/accelerator/cuda_accelerator.py", 300, "pin_memory", "return tensor.pin_memory()")
    own_code = ("/u/train.py", 9, "main", "batch = batch.pin_memory()")
    assert judge_error(*error, USER).kind == "oom"
    assert judge_error(*error, USER, pinning).kind == "host_oom"
    assert judge_error(*error, own_code).kind == "host_oom"
    redis = "redis.exceptions.OutOfMemoryError", "command not allowed when used memory > 'maxmemory'."
    assert judge_error(*redis, USER, last_step=30).kind == "crash"


@pytest.mark.parametrize("xid", [61, 92, 144, 145, 150])
def test_a_gpu_s_other_errors_are_tried_elsewhere(xid: int) -> None:
    kernel = (KernelLine(9.0, f"NVRM: Xid (PCI:0000:3b:00): {xid}, pid=4000, name=python"),)
    assert judge(outcome(*KILLED, kernel=kernel, launcher_exit=247)).kind == "gpu_fault"


@pytest.mark.parametrize("kind", ["torch.distributed.DistNetworkError", "builtins.OSError", "builtins.RuntimeError"])
def test_a_port_that_another_process_has_is_no_mistake(kind: str) -> None:
    message = "The server socket has failed to listen on any local network address. port: 29500, code: -98, name: "
    verdict = judge_error(kind, f"{message}EADDRINUSE, message: address already in use", USER)
    assert (verdict.kind, verdict.rule, verdict.place) == ("crash", "port-in-use", "")
    lines = log_lines(f"[rank0]: {kind}: {message}EADDRINUSE, message: address already in use")
    assert judge(outcome(*LEFT, lines=lines, last_step=None)).rule == "port-in-use"
