"""The launcher's command line, hostfile and environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dscampaign.jobs.agent import launch, launchers
from dscampaign.jobs.agent.node import Node
from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.jobs.shared.payload import Payload
from dscampaign.tests.support.attempt import make_payload

STATIC = "--nnodes 2 --nproc_per_node 2 --node_rank 1 --max_restarts 0 --master_addr 10.0.0.1 --master_port 4000"


def environment(payload: Payload, node: Node | None = None, base: dict[str, str] | None = None) -> dict[str, str]:
    paths = AttemptPaths(Path(payload.attempt_dir))
    return launch.environment(payload, paths, node or Node("7_0", 0, "n0", "4,5"), "/ck", base or {}, cpu_count=9)


def test_every_node_starts_its_own_ranks_and_nobody_needs_ssh(tmp_path: Path) -> None:
    payload = make_payload(tmp_path, nodes=2)
    line = launch.command(payload, Path("/h"), 1, "10.0.0.1", 4000)
    assert line[:4] == [payload.python, "-u", "-m", "deepspeed.launcher.runner"]
    assert " ".join(line[4:13]) == "--hostfile /h --no_ssh --node_rank 1 --master_addr 10.0.0.1 --master_port 4000"
    assert line[13:] == ["--no_local_rank", launch.RANK_SCRIPT, *payload.command]
    assert Path(launch.RANK_SCRIPT).is_file()


@pytest.mark.parametrize(
    ("launcher", "line"),
    [
        ("torchrun", f"-u -m torch.distributed.run --monitor_interval 1 -x {STATIC}"),
        ("srun", f"-u {launchers.TASKS} 1 2 2 10.0.0.1 4000"),
    ],
)
def test_every_launcher_gets_the_place_of_its_node(tmp_path: Path, launcher: str, line: str) -> None:
    payload = make_payload(tmp_path, nodes=2, launcher=launcher, launcher_options=("-x",))
    command = launch.command(payload, Path("/h"), 1, "10.0.0.1", 4000)
    assert " ".join(command) == f"{payload.python} {line} {launch.RANK_SCRIPT} {' '.join(payload.command)}"


@pytest.mark.parametrize(
    ("ranks", "configured", "options", "chosen"),
    [
        (2, None, [], True),
        (2, "distributed_type: 'NO'", [], True),
        (2, '{"distributed_type": "MULTI_CPU"}', [], True),
        (2, "a: b\ndistributed_type: DEEPSPEED", [], False),
        (2, "distributed_type: MULTI_GPU", [], False),
        (2, "distributed_type: 'NO'", ["--use_fsdp"], False),
        (2, None, ["--cpu"], True),
        (1, None, ["--multi_gpu"], False),
        (1, None, [], False),
    ],
)
def test_accelerate_starts_all_ranks_whatever_its_configuration(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ranks: int,
    configured: str | None,
    options: list[str],
    chosen: bool,
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    if configured:
        (tmp_path / "accelerate").mkdir()
        (tmp_path / "accelerate/default_config.yaml").write_text(configured)
    place = launchers.NodeLaunch("python", 1, ranks, 0, "127.0.0.1", 4000, "/h")
    line = launchers.command("accelerate", place, options)
    assert ("--multi_gpu" in line) is chosen
    assert " ".join(line).endswith(
        f"--num_processes {ranks} --num_machines 1 --machine_rank 0 --max_restarts 0 --main_process_ip 127.0.0.1"
        " --main_process_port 4000 --rdzv_backend static --deepspeed_multinode_launcher standard"
    )


@pytest.mark.parametrize(
    ("code", "log", "expected"),
    [
        (1, "  exitcode  : -15 (pid: 1)\nRoot Cause\n  exitcode  : -9 (pid: 2)", 247),
        (1, "  exitcode  : 1 (pid: 1)", 1),
        (1, "'x']' died with <Signals.SIGSEGV: 11>.", 245),
        (3, "  exitcode  : -9 (pid: 2)", 3),
    ],
)
def test_a_launcher_that_names_the_signal_only_in_its_log(tmp_path: Path, code: int, log: str, expected: int) -> None:
    (tmp_path / "log").write_text(log)
    assert launchers.exit_code(code, tmp_path / "log") == expected


def test_cores_are_shared_among_ranks_unless_somebody_said_otherwise(tmp_path: Path) -> None:
    payload = make_payload(tmp_path)
    assert environment(payload)["OMP_NUM_THREADS"] == "4"
    assert environment(payload, base={"OMP_NUM_THREADS": "2"})["OMP_NUM_THREADS"] == "2"
    spec = make_payload(tmp_path, env={"OMP_NUM_THREADS": "3"})
    assert environment(spec, base={"OMP_NUM_THREADS": "2"})["OMP_NUM_THREADS"] == "3"
    assert environment(make_payload(tmp_path, ranks_per_node=64))["OMP_NUM_THREADS"] == "1"


def test_the_spec_cannot_override_what_ties_a_rank_to_its_attempt(tmp_path: Path) -> None:
    payload = make_payload(tmp_path, env={"CAMPAIGN_METRICS_FILE": "/elsewhere", "CAMPAIGN_AGENT_PID": "1"})
    env = environment(payload, base={"CAMPAIGN_RESUME": "/old"})
    assert env["CAMPAIGN_METRICS_FILE"] == str(AttemptPaths(Path(payload.attempt_dir)).metrics)
    assert (env["CAMPAIGN_AGENT_PID"], env["CAMPAIGN_RESUME"]) == (str(os.getpid()), "/ck")


def test_what_places_the_agent_among_processes_places_no_rank(tmp_path: Path) -> None:
    """Slurm starts one task a node, the agent; a shell may be a rank of something itself."""
    names = (
        "SLURM_NTASKS SLURM_PROCID SLURM_LOCALID SLURM_STEP_NUM_TASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE SLURM_GTIDS"
        " SLURM_TASKS_PER_NODE SLURM_PMIX_X PMI_RANK PMI_SIZE PMIX_RANK PMIX_SERVER_URI4 MPI_LOCALNRANKS RANK"
        " WORLD_SIZE OMPI_COMM_WORLD_SIZE OMPI_UNIVERSE_SIZE MV2_COMM_WORLD_RANK LOCAL_WORLD_SIZE GROUP_RANK"
    )
    base = dict.fromkeys(names.split(), "1")
    kept = {"SLURM_NNODES": "2", "SLURM_NODEID": "1", "OMPI_MCA_btl": "tcp", "SLURM_CPUS_PER_TASK": "4"}
    payload = make_payload(tmp_path, nodes=2, ranks_per_node=4)
    env = environment(payload, base=base | kept)
    assert env.keys() & base.keys() == set()
    assert kept.items() <= env.items()
    env = environment(payload, base=base | kept | {"SLURM_JOB_ID": "7"})
    assert {name: env[name] for name in env.keys() & base.keys()} == {
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), "8"),
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_TASKS_PER_NODE": "4(x2)",
    }
    assert environment(make_payload(tmp_path, env={"NODE_RANK": "1"}), base={"NODE_RANK": "0"})["NODE_RANK"] == "1"
