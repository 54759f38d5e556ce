"""`campaign doctor` as its user meets it, on this machine, and what it learns from a spec."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.cli.show import doctor_document, doctor_page
from dscampaign.orchestrator.doctor import run as node_job
from dscampaign.orchestrator.doctor.check import At
from dscampaign.orchestrator.doctor.requirements import Requirements, needed_ops
from dscampaign.orchestrator.executors.base import JobArray
from dscampaign.orchestrator.executors.local import EXAMINE
from dscampaign.orchestrator.executors.slurm import SlurmExecutor
from dscampaign.orchestrator.pages.text import Page
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.tests.support.fake_slurm import FakeSlurm
from dscampaign.tests.support.postgres import PostgresServer
from dscampaign.tests.support.waiting import HANGS_S, wait_until

Output = pytest.CaptureFixture[str]

SPEC = """\
name: fit
executor: local
ranks_per_node: 2
env: {DS_ACCELERATOR: cpu, OMP_NUM_THREADS: 1}
train:
  model: {model_type: gpt2, n_layer: 1, n_embd: 32, n_head: 1}
  tokenizer: bytes
  dataset: text.txt
  seq_len: 32
  global_batch: 4
  steps: 3
  precision: fp32
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("CAMPAIGN_DIR", "CAMPAIGN_STORE", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "text.txt").write_text("some text\n")
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


def checks(capsys: Output) -> dict[str, dict[str, Any]]:
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert sum(document["counts"].values()) == len(document["checks"])
    return {check["id"]: check for check in document["checks"]}


@pytest.mark.nightly
@pytest.mark.training
def test_this_machine_is_fit_for_a_local_campaign(spec: Path, capsys: Output) -> None:
    code = main(["doctor", str(spec), "--on-node", "--json"])
    found = checks(capsys)
    assert {k: v for k, v in found.items() if v["verdict"] == "problem"} == {}
    assert code == 0
    assert "gloo, 2 ranks: right sum" in found["node.all_reduce"]["seen"]
    assert found["software.deepspeed"]["verdict"] == "ok"
    assert found["host.files"]["verdict"] == "ok"
    assert not (spec.parent / "campaign").exists()  # it leaves nothing behind


def test_without_a_spec_host_folder_and_store_are_looked_at(
    spec: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))  # a machine without Slurm
    assert main(["doctor", "--json"]) == 0
    found = checks(capsys)
    assert {"folder.writable", "store.reachable", "store.file_system"} <= found.keys()
    assert not any(about.startswith(("slurm.", "node.")) for about in found)


def test_a_store_that_does_not_answer_is_a_verdict_and_exit_code_3(spec: Path, capsys: Output) -> None:
    assert main(["doctor", str(spec), "--json", "--store", "postgresql://me@127.0.0.1:1/x"]) == 3
    assert checks(capsys)["store.reachable"]["verdict"] == "problem"


def test_postgresql_is_reached_from_here_and_from_the_node(
    spec: Path, capsys: Output, postgres: PostgresServer
) -> None:
    (spec.parent / "python").write_text("#!/bin/sh\nexit 1\n")
    (spec.parent / "python").chmod(0o700)
    store = postgres.new_database()
    words = ["doctor", str(spec), "--json", "--store", store]
    assert main(words) == 1
    assert checks(capsys)["store.reachable"]["next"].startswith("`campaign db upgrade")
    assert main(["db", "upgrade", "--store", store]) == 0
    capsys.readouterr()
    main([*words, "--on-node", "--set", "python=./python"])
    found = checks(capsys)
    for about in ("store.reachable", "node.store"):
        assert found[about]["verdict"] == "ok", found[about]


def test_the_python_that_the_setup_chooses_is_checked(spec: Path, capsys: Output) -> None:
    (spec.parent / "bin").mkdir()
    (spec.parent / "bin/python").write_text("#!/bin/sh\necho 'ImportError: chosen' >&2\nexit 1\n")
    (spec.parent / "bin/python").chmod(0o700)
    options = ["--set", f'local.setup=["PATH={spec.parent}/bin:$PATH"]']
    assert main(["doctor", str(spec), "--on-node", "--json", *options]) == 1
    assert checks(capsys)["software.torch"]["seen"] == "ended with code 1: ImportError: chosen"


def test_being_told_to_end_ends_all_that_was_started(spec: Path) -> None:
    """By SIGTERM. Ctrl-C is proven in tests/integration/slurm/test_doctor.py."""
    (spec.parent / "python").write_text(
        "#!/bin/sh\ncase $* in *training_python.py\\ software*) sleep 600;; esac\nexit 1\n"
    )
    (spec.parent / "python").chmod(0o700)
    words = ["doctor", str(spec), "--on-node", "--set", "python=./python"]
    command = [sys.executable, "-m", "dscampaign.orchestrator.cli", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: bool(_running("training_python.py", spec.parent)), "the look at the training's Python")
    process.terminate()
    assert process.wait(HANGS_S) == 130
    for program in (EXAMINE, "training_python.py"):
        wait_until(lambda program=program: not _running(program, spec.parent), f"the end of {program}")  # type: ignore[misc]


def _running(program: str, folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if program in line and str(folder) in line:
            found.append(line)
    return found


# -- a job -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{fake.folder}:{os.environ['PATH']}")
    monkeypatch.setattr(node_job, "ASK_SLURM_S", 0.1)
    monkeypatch.setattr(SlurmExecutor, "outcome_grace_s", 0.1)
    return fake


def required(**slurm: Any) -> Requirements:
    config = RunConfig.model_validate({"slurm": {"gpus_per_node": "h100:8", "nodes": 4, "time": "2-0", **slurm}})
    return Requirements(("run",), config, ranks=8, gpus=8, on_gpus=True)


def settings(folder: Path) -> Any:
    from dscampaign.orchestrator.settings import resolve

    return resolve({"dir": str(folder), "store": None}, environ={}, cwd=folder)


def job(state: str, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch, reason: str = "None") -> None:
    """Slurm shows the job in that state, whatever its name."""
    line = f"12_0|{state}|{reason}|1000|1010|1020|n7|{os.geteuid()}|campaign-doctor.token\n"
    fake.answers("squeue", line)
    monkeypatch.setattr(uuid, "uuid4", lambda: type("U", (), {"hex": "token"}))


def test_a_job_asks_for_one_node_and_a_short_time(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job("PENDING", slurm, monkeypatch, "Resources")
    said: list[str] = []
    found = node_job.examine(required(nodelist="n[1-4]"), settings(tmp_path), 0.3, said.append)
    assert "waited in the queue for 0 min: Resources" in found.trouble
    assert found.away
    assert any("waits in the queue: Resources" in line for line in said)
    job("PENDING", slurm, monkeypatch)  # before Slurm has a reason
    found = node_job.examine(required(), settings(tmp_path), 0.3, said.append)
    assert "None" not in "".join([found.trouble, *said])
    submitted = next(call for call in slurm.calls if call.name == "sbatch")
    assert {"--nodes=1", "--time=15", "--gpus-per-node=h100:8", "--array=0-0%1"} <= submitted.options
    assert not any(option.startswith("--nodelist") for option in submitted.options)
    assert EXAMINE in submitted.script
    assert next(call for call in slurm.calls if call.name == "scancel").args == ["12_0"]


def test_a_job_that_leaves_nothing_proves_that_the_folder_is_not_shared(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job("COMPLETED", slurm, monkeypatch)
    found = node_job.examine(required(), settings(tmp_path), 60, lambda _: None)
    assert found.shared is False
    assert "the same folder on the nodes?" in found.hint
    assert "scancel" not in slurm.names()


def test_a_slurm_that_falls_silent_is_not_waited_for_for_ever(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_job, "TIME_MIN", 0)
    monkeypatch.setattr(node_job, "_OVER_S", 0.3)
    slurm.answers("squeue", err="slurm_load_jobs error: Unable to contact slurm controller", code=1)
    found = node_job.examine(required(), settings(tmp_path), 0.0, lambda _: None)
    assert (found.away, found.shared) == (True, None)
    assert "lost contact with job" in found.trouble
    assert "scancel" in slurm.names()


def test_a_job_that_fails_is_told_with_its_log(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job("TIMEOUT", slurm, monkeypatch)
    real = SlurmExecutor.submit

    def with_log(executor: SlurmExecutor, batch: JobArray) -> list[str]:
        (batch.folder / "12_0_log.err").write_text("python: command not found\n")
        return real(executor, batch)

    monkeypatch.setattr(SlurmExecutor, "submit", with_log)
    found = node_job.examine(required(), settings(tmp_path), 60, lambda _: None)
    assert found.trouble == "job 12_0 on n7 ended as TIMEOUT: python: command not found"
    assert found.folder is not None
    assert found.folder.is_dir()


@pytest.mark.parametrize(
    ("words", "away"), [("invalid partition specified: x", False), ("QOSMaxSubmitJobPerUserLimit", True)]
)
def test_a_job_that_sbatch_does_not_take(slurm: FakeSlurm, tmp_path: Path, words: str, away: bool) -> None:
    slurm.answers("sbatch", err=f"sbatch: error: {words}\n", code=1)
    found = node_job.examine(required(), settings(tmp_path), 60, lambda _: None)
    assert words in found.trouble
    assert found.away is away


# -- what a spec asks for ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "ops"),
    [
        ({}, []),
        ({"train": {"zero_stage": 2, "offload": "optimizer"}}, []),  # torch's optimizer needs no compiler
        ({"train": {"zero_stage": 3, "offload": "nvme", "nvme_path": "/nvme"}}, ["async_io"]),
        ({"deepspeed": {"optimizer": {"type": "Adam", "params": {"torch_adam": False}}}}, ["fused_adam"]),
        (
            {
                "train": {"zero_stage": 2, "offload": "optimizer"},
                "deepspeed": {"optimizer": {"type": "AdamW", "params": {"torch_adam": False}}},
            },
            ["cpu_adam"],
        ),
        ({"deepspeed": {"optimizer": {"type": "Lion"}}}, ["fused_lion"]),
        ({"train": {"engine": "ddp"}}, []),
    ],
)
def test_operators_that_a_run_needs(given: dict[str, Any], ops: list[str]) -> None:
    assert list(needed_ops(RunConfig.model_validate(given))) == ops


# -- what is printed ---------------------------------------------------------------------------------------------------


def test_the_page_groups_by_place_and_says_what_to_do_next() -> None:
    node, store = At("node n1"), At("store")
    found = [
        node.ok("node.memory", "442 GB"),
        store.warning("store.file_system", "SQLite", "z"),
        node.problem("gpu.count", "x", "y"),
    ]
    page = doctor_page(found, Page())
    assert page.splitlines() == [
        "node n1",
        "ok       node.memory  442 GB",
        "problem  gpu.count    x",
        "         next: y",
        "",
        "store",
        "warning  store.file_system  SQLite",
        "         next: z",
        "",
        "Doctor: 1 problem, 1 warning, 1 ok",
    ]
    assert "\x1b[31mproblem" in doctor_page(found, Page(colour=True))
    assert doctor_document(found)["counts"] == {"ok": 1, "warning": 1, "problem": 1}
    assert doctor_document(found)["checks"][2] == {
        "id": "gpu.count",
        "where": "node n1",
        "verdict": "problem",
        "seen": "x",
        "next": "y",
    }
