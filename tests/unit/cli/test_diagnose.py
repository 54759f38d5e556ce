"""`campaign diagnose`: ends of jobs that this program did not start, as their logs show them."""

# ruff: noqa: E501 - logs have long lines

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dscampaign.orchestrator.campaign import diagnosis
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.tests.support.fake_slurm import FakeSlurm

Output = pytest.CaptureFixture[str]

ELASTIC = """\
W1126 10:00:00.123000 4242 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 4243 closing signal SIGTERM
E1126 10:00:01.456000 4242 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {code}) local_rank: 3 (pid: 4246) of binary: /env/bin/python
Traceback (most recent call last):
  File "/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/env/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 269, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-26_10:00:01
  host      : gpu-17.cluster
  rank      : 3 (local_rank: 3)
  exitcode  : {code} (pid: 4246)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
srun: error: gpu-17: task 0: Exited with exit code 1
"""

TORCHRUN_OOM = """\
{'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 2e-05, 'epoch': 0.01}
[rank3]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank3]:   File "/home/u/train.py", line 60, in main
[rank3]:     loss = model(batch)
[rank0]:   File "/home/u/train.py", line 61, in main
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB \
of which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.90 GiB memory in use. Of the allocated \
memory 77.00 GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated.
[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error
""" + ELASTIC.format(code=1)

DEEPSPEED_HANG = """\
[2026-11-26 10:00:00,000] [INFO] [logging.py:107:log_dist] [Rank 0] step=40, skipped=0, lr=[0.0001], mom=[(0.9, 0.95)]
[rank5]:[E1126 10:30:01.000000000 ProcessGroupNCCL.cpp:629] [Rank 5] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800089 milliseconds before timing out.
[rank5]:[E1126 10:30:01.100000000 ProcessGroupNCCL.cpp:681] [Rank 5] To avoid data inconsistency, we are taking the entire process down.
[2026-11-26 10:30:05,000] [INFO] [launch.py:335:sigkill_handler] Killing subprocess 4242
[2026-11-26 10:30:06,000] [ERROR] [launch.py:341:sigkill_handler] ['/env/bin/python', '-u', 'train.py', '--local_rank=5'] exits with return code = -6
"""

LIGHTNING_MISTAKE = """\
GPU available: True (cuda), used: True
Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/8
\x1b[31mTraceback (most recent call last):\x1b[0m
  File "/home/u/fit.py", line 31, in <module>
    trainer.fit(model, data)
  File "/home/u/fit.py", line 12, in configure_optimizers
    return torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate)
\x1b[1;31mAttributeError\x1b[0m: 'Namespace' object has no attribute 'learning_rate'
"""

BAR = """\
Training:   0%|          | 0/1000 [00:00<?, ?it/s]\rTraining:   1%|1         | 10/1000 [00:05<08:15,  2.00it/s]\
Traceback (most recent call last):
  File "/home/u/train.py", line 5, in <module>
    model = build(args.arch)
NameError: name 'build' is not defined
"""

HUB = """\
Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/huggingface_hub/utils/_http.py", line 406, in hf_raise_for_status
    response.raise_for_status()
requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://hub.example/api/models/x/revision/main
"""

DISK = """\
step 400 loss 2.01
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/u/train.py", line 90, in save
[rank0]:     torch.save(state, path)
[rank0]: OSError: [Errno 28] No space left on device
"""

SRUN_LABELS = """\
module: loaded cuda/12.4
0: reading the data
1: Traceback (most recent call last):
0: Traceback (most recent call last):
1:   File "/home/u/train.py", line 7, in <module>
0:   File "/home/u/train.py", line 7, in <module>
1:     batch["labels"]
0: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited
1: FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'
srun: error: n4: task 1: Exited with exit code 1
slurmstepd: error: *** STEP 77.0 ON n3 CANCELLED AT 2026-11-26T10:00:00 ***
"""

TEE = """\
[default0]:step 1 loss 2.3
[default2]:Traceback (most recent call last):
[default0]:step 2 loss 2.3
[default2]:  File "/home/u/train.py", line 7, in <module>
[default2]:MemoryError
"""

PDSH = """\
worker-1: step 1 loss 2.3
worker-2: [rank8]: Traceback (most recent call last):
worker-1: step 2 loss 2.2
worker-2: [rank8]: RuntimeError: CUDA error: uncorrectable ECC error encountered
worker-1: [rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited
"""

PORT = """\
[rank0]: torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: \
29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use
"""
LIMIT = "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-11-26T10:00:00 DUE TO TIME LIMIT ***\n"
CANCELLED = "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-11-26T10:00:00 ***\n"
STEPS = "step 1 loss 2.3\nstep 2 loss 2.2\n"
GLOO = "[rank0]: RuntimeError: gloo/pair.cc:5 Connection reset by peer. This is typically caused by a remote worker hanging\n"

ENDS: list[tuple[str, str, str | None, int | None, int | None, str | None]] = [
    ("torchrun-oom", TORCHRUN_OOM, "oom", 7, 3, "gpu-17.cluster"),
    ("torchrun-segfault", STEPS + ELASTIC.format(code=-11), "gpu_fault", 22, 3, "gpu-17.cluster"),
    ("torchrun-killed", STEPS + ELASTIC.format(code=-9), "crash", 22, 3, "gpu-17.cluster"),
    ("torchrun-segfault-lost", STEPS + GLOO + ELASTIC.format(code=-11), "gpu_fault", 23, 3, "gpu-17.cluster"),
    ("deepspeed-nccl-timeout", DEEPSPEED_HANG, "hang", 2, 5, None),
    ("lightning-mistake", LIGHTNING_MISTAKE, "crash", 8, None, None),
    ("mistake-behind-a-progress-bar", BAR, "deterministic", 4, None, None),
    ("crlf", LIGHTNING_MISTAKE.replace("\n", "\r\n"), "crash", 8, None, None),
    ("hub-outage", HUB, "crash", 4, None, None),
    ("disk-full", DISK, "storage", 5, 0, None),
    ("srun-label", SRUN_LABELS, "crash", 9, 1, "n4"),
    ("srun-label-later", SRUN_LABELS.replace("reading the data", "step 3 loss 2.1"), "crash", 9, 1, "n4"),
    ("torchrun-tee", TEE, "host_oom", 5, 2, None),
    ("pdsh", PDSH, "gpu", 4, 8, "worker-2"),
    ("time-limit", STEPS + LIMIT, "time_limit", 3, None, None),
    ("preempted", STEPS + LIMIT.replace("TIME LIMIT", "PREEMPTION"), "preempted", 3, None, None),
    ("requeued", STEPS + LIMIT.replace("TIME LIMIT", "JOB REQUEUE"), "preempted", 3, None, None),
    ("node-fail", STEPS + "srun: error: Node failure on n7\n", "node", 3, None, "n7"),
    ("cancelled", STEPS + CANCELLED, "cancelled", 3, None, None),
    ("cancelled-after-a-failure", TORCHRUN_OOM + CANCELLED, "oom", 7, 3, "gpu-17.cluster"),
    ("srun-oom", STEPS + "srun: error: n1: task 0: Out Of Memory\n", "host_oom", 3, None, "n1"),
    ("oom-kill", STEPS + "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0.\n", "host_oom", 3, None, None),
    ("shell-segfault", STEPS + "/var/s/job77: line 9:  42 Segmentation fault      python t.py\n", "gpu_fault", 3, None, None),
    ("no-command", "/var/s/job77/slurm_script: line 9: conda: command not found\n", "crash", 1, None, None),
    ("port-in-use", PORT, "crash", 1, 0, None),
    ("no-command-but-training", "x: line 9: nvidia-smi: command not found\n" + STEPS, None, None, None, None),
    ("an-error-nobody-knows", STEPS + "Traceback (most recent call last):\nfoo.BarError: baz\n", "crash", 4, None, None),
    ("in-good-order", STEPS + "done\n", None, None, None, None),
    ("an-error-that-was-handled", "ValueError: x\n" + STEPS + "done\n", None, None, None, None),
]  # fmt: skip


def diagnosed(capsys: Output, *words: str | Path) -> dict[str, Any]:
    code = main(["diagnose", *map(str, words), "-o", "json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == (0 if found["class"] else 1)
    assert found["schema_version"] == 1
    return found


@pytest.mark.parametrize(("text", "kind", "line", "rank", "node"), [e[1:] for e in ENDS], ids=[e[0] for e in ENDS])
def test_a_log_tells_why_the_job_ended(
    tmp_path: Path, capsys: Output, text: str, kind: str | None, line: int | None, rank: int | None, node: str | None
) -> None:
    log = tmp_path / "slurm-77.out"
    log.write_bytes(text.encode())
    found = diagnosed(capsys, log)
    proof = found["proof"] or {"file": str(log), "line": None}
    assert (found["class"], found["rank"], found["node"]) == (kind, rank, node)
    assert (proof["file"], proof["line"]) == (str(log), line)
    assert found["next"].startswith(FailureClass(kind).policy.by_hand if kind else "Add evidence: ")
    assert main(["diagnose", str(log)]) == (0 if kind else 1)
    page = capsys.readouterr().out
    assert page.startswith(f"{kind.replace('_', ' ')}:" if kind else "unknown: ")
    assert line is None or f"{log}:{line}" in page
    assert sorted(tmp_path.iterdir()) == [log]


@pytest.mark.parametrize(
    "junk", [b"", b"\0" * 5000, bytes(range(256)) * 100, b"\r" * 5000, b"\xff\xfe" * 9, b"\n" * 5000]
)
def test_junk_is_no_evidence_and_no_bug(tmp_path: Path, capsys: Output, junk: bytes) -> None:
    log = tmp_path / "junk"
    log.write_bytes(junk)
    assert diagnosed(capsys, log)["class"] is None
    log.write_bytes(junk + b"\n\x1b]0;title\x07KeyError: 'a'\n" + junk)
    assert diagnosed(capsys, log)["proof"]["text"] == "KeyError: 'a'"


def test_what_cannot_be_read_is_said_in_words(tmp_path: Path, capsys: Output) -> None:
    pipe, packed, empty = tmp_path / "pipe", tmp_path / "a.log.gz", tmp_path / "empty"
    os.mkfifo(pipe)
    packed.write_bytes(b"\x1f\x8b\x08rest")
    empty.mkdir()
    cases: list[tuple[list[str | Path], str]] = [
        ([tmp_path / "nope"], f"cannot read {tmp_path / 'nope'}: no such file"),
        ([pipe], f"cannot read {pipe}: Not a regular file"),
        ([packed], f"{packed} is compressed"),
        ([empty], f"no logs in {empty}"),
        ([], "nothing to diagnose"),
        (["--job", "abc"], "abc is not a job id"),
    ]
    for words, said in cases:
        assert main(["diagnose", *map(str, words)]) == 2
        assert f"error: {said}\n" in capsys.readouterr().err


def test_a_pipe_among_the_logs_of_a_folder_is_skipped_with_a_remark(tmp_path: Path, capsys: Output) -> None:
    os.mkfifo(tmp_path / "a.log")
    (tmp_path / "b.log").write_text("KeyError: 'a'\n")
    (tmp_path / "gone.log").symlink_to("nowhere")
    assert main(["diagnose", str(tmp_path)]) == 0
    skipped = f"Skipped, not regular files: {tmp_path / 'a.log'}, {tmp_path / 'gone.log'}."
    assert skipped in capsys.readouterr().out


def test_the_folder_of_an_attempt(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "launcher-0.log").write_text("x\n")
    log = tmp_path / "logs" / "0_rank3.log"
    log.write_text(f"{STEPS}Traceback (most recent call last):\nModuleNotFoundError: No module named 'x'\n")
    found = diagnosed(capsys, tmp_path)
    assert (found["class"], found["rank"]) == ("deterministic", 3)
    assert (found["proof"]["file"], found["proof"]["line"]) == (str(log), 4)


def test_lines_of_a_huge_log_are_counted_from_its_beginning(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "FILE_BYTES", 4000)
    monkeypatch.setattr(diagnosis, "_BLOCK_BYTES", 333)
    log = tmp_path / "slurm-77.out"
    log.write_text(f"{STEPS * 500}KeyError: 'a'\n")
    found = diagnosed(capsys, log)
    assert (found["proof"]["line"], found["files"][0]["read_bytes"]) == (1001, 4000)
    log.write_text(f"KeyError: 'a'\n{STEPS * 500}")
    assert diagnosed(capsys, log)["class"] is None


SCONTROL = """\
JobId=77 JobName=train
   UserId=u(1000) GroupId=u(1000) MCS_label=N/A
   JobState={state} Reason=NonZeroExitCode Dependency=(null)
   RunTime=00:10:00 TimeLimit=01:00:00 ExitCode={code}
   SubmitTime=1000 EligibleTime=1000
   StartTime=1010 EndTime=1100 Deadline=N/A
   NodeList=n1
   StdErr={log}
   StdOut={log}
"""
ROWS = "77|{state}|{code}|1000|1010|1100|n1|1000|train\n77.batch|{state}|{code}|1000|1010|1100|n1||batch\n"


@pytest.mark.parametrize(
    ("state", "code", "kind", "node"),
    [
        ("TIMEOUT", "0:0", "time_limit", "n1"),
        ("OUT_OF_MEMORY", "0:125", "host_oom", "n1"),
        ("NODE_FAIL", "0:0", "node", "n1"),
        ("PREEMPTED", "0:0", "preempted", "n1"),
        ("CANCELLED by 1001", "0:15", "cancelled", "n1"),
        ("COMPLETED", "0:0", "completed", "n1"),
        ("FAILED", "1:0", None, "n1"),
    ],
)
def test_slurm_is_asked_about_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output, state: str, code: str, kind: str | None, node: str
) -> None:
    slurm, log = FakeSlurm(tmp_path / "bin"), tmp_path / "a b.out"
    monkeypatch.setenv("PATH", f"{slurm.folder}:{os.environ['PATH']}")
    log.write_text(STEPS)
    word = state.partition(" ")[0]
    forgotten = "", "slurm_load_jobs error: Invalid job id specified\n", 1
    disabled = "", "Slurm accounting storage is disabled\n", 1
    live = SCONTROL.format(state=word, code=code, log=log)
    rows = ROWS.format(state=state, code=code)
    for by_scontrol, by_sacct in [
        ((live, "", 0), (rows, "", 0)),
        ((live, "", 0), disabled),
        (forgotten, (rows, "", 0)),
    ]:
        slurm.answers("scontrol", *by_scontrol)
        slurm.answers("sacct", *by_sacct)
        found = diagnosed(capsys, "--job", "77")
        assert (found["class"], found["node"], found["job"]["state"]) == (kind, node, word)
        assert [file["path"] for file in found["files"]] == ([] if by_scontrol is forgotten else [str(log)])
    slurm.answers("scontrol", *forgotten)
    slurm.answers("sacct", "")
    assert main(["diagnose", "--job", "77"]) == 2
    assert "Slurm knows no job 77" in capsys.readouterr().err
