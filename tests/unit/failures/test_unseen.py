"""Members of a kind that are in no example of the rules: devices of other vendors, files of other libraries."""

from __future__ import annotations

from typing import Any

import pytest

from dscampaign.jobs.agent.evidence import RankEnd
from dscampaign.jobs.agent.gpus import Gpu, GpuFacts
from dscampaign.orchestrator.failures.verdict import Verdict
from dscampaign.tests.support.policy_world import log_lines, outcome
from dscampaign.tests.support.verdicts import SITE, USER, judge, judge_error, meaning

GIB = 2**30


def by_log(text: str, launcher_exit: int = 250) -> Verdict:
    """The verdict where a rank was killed, and only its log says why."""
    values: dict[str, Any] = {"last_step": 30, "lines": log_lines(text), "launcher_exit": launcher_exit}
    return judge(outcome(RankEnd(0, None, None), **values))


# -- devices ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vendor", ["CUDA", "HIP", "XPU", "NPU"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("out of memory", "oom"),
        ("an illegal memory access was encountered", "gpu_fault"),
        ("unspecified launch failure", "gpu_fault"),
        ("uncorrectable ECC error encountered", "gpu"),
        ("no kernel image is available for execution on the device", "deterministic"),
        ("invalid device function", "deterministic"),
        ("invalid configuration argument", "deterministic"),
        ("device-side assert triggered", "deterministic"),
        ("invalid device ordinal", "deterministic"),
        ("an error that nobody has ever seen", "deterministic"),
    ],
)
def test_an_error_of_a_device_is_the_same_whoever_made_it(vendor: str, words: str, expected: str) -> None:
    verdict = judge_error("torch.AcceleratorError", f"{vendor} error: {words}\nCompile with ...", USER)
    assert meaning(verdict) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cupy.cuda.runtime.CUDARuntimeError: cudaErrorIllegalAddress: an address", "gpu_fault"),
        ("hipErrorNoBinaryForGpu: Unable to find code object for all current devices!", "crash"),  # it died of a signal
        ("Native API failed. Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)", "gpu"),
        ("level_zero backend failed with error: 38 (UR_RESULT_ERROR_OUT_OF_HOST_MEMORY)", "host_oom"),
        ("RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`", "oom"),
        ("RuntimeError: cuFFT error: CUFFT_INTERNAL_ERROR", "gpu_fault"),
    ],
)
def test_what_a_runtime_prints_before_it_aborts(text: str, expected: str) -> None:
    assert by_log(text).kind == expected


@pytest.mark.parametrize(
    "message",
    [
        "Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory utilization (0.9)",
        "Not enough free GPU memory: need 40.0 GiB, have 12.3 GiB",
        "The model needs 70 GB of VRAM, but only 30 GB are free",
    ],
)
@pytest.mark.parametrize("kind", ["ValueError", "AssertionError", "RuntimeError"])
def test_a_device_without_room_is_no_mistake(kind: str, message: str) -> None:
    busy = GpuFacts(1, (Gpu("0", 40 * GIB, 80 * GIB),), (Gpu("0", 40 * GIB, 80 * GIB),))
    assert judge_error(f"builtins.{kind}", message, USER).kind == "oom"
    assert judge_error(f"builtins.{kind}", message, USER, gpus=busy).kind == "foreign_oom"


def test_a_mistake_about_a_device_s_memory_is_one_only_if_the_device_was_free() -> None:
    message = "Make sure you have enough GPU RAM to fit the quantized model."
    busy = GpuFacts(1, (Gpu("0", 40 * GIB, 80 * GIB),), (Gpu("0", 40 * GIB, 80 * GIB),))
    assert judge_error("builtins.ValueError", message, USER).kind == "deterministic"
    assert judge_error("builtins.ValueError", message, USER, gpus=busy).kind == "foreign_oom"


# -- the host's memory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("ray.exceptions.OutOfMemoryError", "Task was killed due to the node running low on memory.", "host_oom"),
        ("builtins.RuntimeError", "Worker exceeded 95% memory budget. Restarting", "host_oom"),
        ("builtins.RuntimeError", "host n3 is out of memory: 498 of 503 GiB used", "host_oom"),
        ("builtins.RuntimeError", "not enough system memory to load the shards", "host_oom"),
        ("mylib.OutOfMemoryError", "node n3, rank 2: GPU 2 is out of memory", "oom"),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.", "oom"),
    ],
)
def test_whose_memory_an_error_speaks_of(kind: str, message: str, expected: str) -> None:
    assert judge_error(kind, message, USER, last_step=30).kind == expected


# -- storage and files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("write failed: ENOSPC", "storage"),
        ("zstd: error 70 : Write error : no space left on device", "storage"),
        ("Not enough disk space. Needed: 35.8 GiB", "storage"),
        ("mdb_env_open: Input/output error", "storage"),
        ("rocksdb: stale NFS file handle", "storage"),
        ("EDQUOT", "storage"),
        ("space is what is left on the device", "crash"),
    ],
)
def test_an_errno_has_many_spellings(text: str, expected: str) -> None:
    assert judge_error("builtins.RuntimeError", text, USER).kind == expected


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("sqlalchemy.exc.OperationalError", "(sqlite3.OperationalError) disk I/O error\n[SQL: COMMIT]"),
        ("psycopg.errors.DiskFull", "could not extend file"),
        ("rocksdb.errors.RocksIOError", "IO error: While fsync: a/b.sst"),
        ("mpi4py.MPI.Exception", "MPI_ERR_NO_SPACE: not enough space"),
        ("builtins.OSError", "Can't write data (file write failed: time = 1, errno = 122, error message = 'quota')"),
    ],
)
def test_a_library_that_cannot_write_is_short_of_storage(kind: str, message: str) -> None:
    assert judge_error(kind, message, USER, last_step=30).kind == "storage"


@pytest.mark.parametrize(
    "message",
    [
        "storage has wrong size: expected 512 got 65536",
        "Unable to open file (file signature not found)",
        "incorrect header check",
        "the file is 0 bytes",
        "DATA_LOSS: block 4",
    ],
)
def test_a_damaged_file_is_a_checkpoint_s_where_one_is_read(message: str) -> None:
    reading = f"{SITE}/torch/serialization.py", 580, "_load", ""
    assert judge_error("builtins.RuntimeError", message, USER, reading, start_step=100).kind == "checkpoint"


# -- others ----------------------------------------------------------------------------------------------------


def test_who_was_stalled_is_said_before_the_framework_shuts_down() -> None:
    shut_down = "Horovod has been shut down. This was caused by an exception on one of the ranks"
    lines = log_lines('[x: E stall_inspector.cc:117] One or more rank (marked by "!") is stalled for 90 seconds.')
    kind = "horovod.common.exceptions.HorovodInternalError"
    assert judge_error(kind, shut_down, last_step=30, lines=lines).kind == "hang"
    assert judge_error(kind, shut_down, last_step=30).kind == "crash"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("builtins.ValueError", "the port is in use by another process"),
        ("builtins.ValueError", "tracking server is temporarily unavailable"),
        ("builtins.AssertionError", "worker 3 died before it answered"),
        ("builtins.AssertionError", "expected 2 workers, but one did not join: timed out after 30 s"),
        ("builtins.KeyError", "'result': no response from the scheduler"),
        ("builtins.RuntimeError", "Expected 8 shards from the peer but got 7"),
        ("builtins.RuntimeError", "Expected an answer within 3 s but got none: connection lost"),
        ("asyncio.exceptions.InvalidStateError", "CANCELLED: <Future at 0x7f>"),
        ("builtins.FileNotFoundError", "[Errno 2] No such file or directory: '/dev/shm/psm_1a2b'"),
        ("builtins.FileNotFoundError", "[Errno 2] No such file or directory: '/tmp/tmpab12/x.so'"),
        ("requests.exceptions.HTTPError", "403 Client Error: rate limit exceeded for url: https://x"),
        ("botocore.exceptions.ClientError", "An error occurred (RequestTimeTooSkewed) (403) when calling GetObject"),
    ],
)
def test_what_may_be_otherwise_next_time_is_no_mistake(kind: str, message: str) -> None:
    assert judge_error(kind, message, USER).kind == "crash"


def test_a_compiler_s_helper_that_died_is_no_mistake() -> None:
    compiling = f"{SITE}/torch/_inductor/async_compile.py", 3, "wait", ""
    died = "A process in the process pool was terminated abruptly while the future was running or pending."
    assert judge_error("concurrent.futures.process.BrokenProcessPool", died, USER, compiling).kind == "crash"
    assert meaning(judge_error("builtins.RuntimeError", "odd", USER, compiling)) == "deterministic"


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("builtins.TypeError", "can't convert cuda:0 device type tensor to numpy.", "deterministic"),
        ("builtins.TypeError", "Got unsupported ScalarType BFloat16", "deterministic"),
        ("builtins.TypeError", "'method' object is not subscriptable", "deterministic"),
        ("omegaconf.errors.MissingMandatoryValue", "Missing mandatory value: eval.dir", "deterministic"),
        # data, a server's answer or another node's library may cause these; at the same place again they are mistakes
        ("builtins.TypeError", "'NoneType' object is not subscriptable", "crash"),
        ("builtins.AttributeError", "'Accelerator' object has no attribute 'x'", "crash"),
        ("builtins.AttributeError", "module 'numpy' has no attribute 'bool'", "crash"),
        ("builtins.ValueError", "Predictions don't match the expected format.", "crash"),
    ],
)
def test_after_some_steps_only_the_program_s_text_is_a_mistake_at_once(kind: str, message: str, expected: str) -> None:
    assert judge_error(kind, message, USER, last_step=100).kind == expected
