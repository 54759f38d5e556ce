"""A command and its launcher: each part goes to its field, no option is lost, and a mistake is told once."""

import shlex
from pathlib import Path

import pytest

from dscampaign.orchestrator.spec.command_line import launch_line
from dscampaign.tests.support.spec_files import load_runs
from dscampaign.tests.unit.spec.test_mistakes import OWN, problems

QUOTE = "YAML reads this as a mapping; quote it: '{lr}'"


@pytest.fixture(autouse=True)
def _script(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()


@pytest.mark.parametrize(
    ("line", "launcher", "options", "script", "sizes"),
    [
        ("torchrun --nproc_per_node 8 --nnodes=2 t.py -m x", "torchrun", "", "t.py -m x", {"ranks": 8, "nodes": 2}),
        ("torchrun --rdzv-backend c10d --role r --max_restarts=3 t.py", "torchrun", "--role r", "t.py", {}),
        ("python -u -m torch.distributed.run -t 3 -- t.py", "torchrun", "", "t.py", {}),
        ("python -m torch.distributed.launch --use_env t.py a", "torchrun", "", "t.py a", {}),
        ("python3 -m torch.distributed.launch t.py a", "torchrun", "", "t.py --local_rank={local_rank} a", {}),
        (
            "accelerate launch --config_file a.yaml --multi_gpu --num_processes 8 --machine_rank $R t.py --debug",
            *("accelerate", "--config_file a.yaml --multi_gpu", "t.py --debug", {"world": 8}),
        ),
        ("deepspeed --no_local_rank --bind_cores_to_rank t.py", "deepspeed", "--bind_cores_to_rank", "t.py", {}),
        ("srun -n4 -N 2 -l -c8 -J j python -u t.py x", "srun", "", "t.py x", {"world": 4, "nodes": 2}),
    ],
)
def test_parts(line: str, launcher: str, options: str, script: str, sizes: dict[str, int]) -> None:
    found = launch_line(shlex.split(line))
    assert found is not None
    assert (found.launcher, " ".join(found.options), " ".join(found.script)) == (launcher, options, script)
    assert (found.sizes, found.refused) == (sizes, {})
    assert shlex.split(line)[found.at] in found.script


def test_each_part_goes_to_its_field(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    line = f"{tmp_path}/bin/torchrun --nproc_per_node 2 --rdzv_id $ID --role {{lr}} train.py --lr {{lr}}"
    path.write_text(f"{OWN}command: {line}\nmatrix: {{lr: [1]}}\n")
    (run,) = load_runs(path)[1]
    config = run.config
    assert (config.launcher, config.launcher_options) == ("torchrun", ("--role", "1"))
    assert config.command == (str(tmp_path / "train.py"), "--lr", "1")
    assert (config.python, run.ranks_per_node) == (f"{tmp_path}/bin/python", 2)


def test_a_python_may_be_the_folder_of_its_environment(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / "envs" / name / "bin").mkdir(parents=True)
        (tmp_path / "envs" / name / "bin" / "python").touch()
    matrix = "matrix: {lr: [1, 2], python: [envs/old, envs/new/bin/python], exclude: [{lr: 2, python: envs/new}]}"
    path = tmp_path / "spec.yaml"
    path.write_text(f"{OWN}command: train.py\n{matrix}\n")
    runs = load_runs(path)[1]
    assert [run.name for run in runs] == ["lr-1_python-old", "lr-1_python-new", "lr-2_python-old"]
    assert {run.config.python for run in runs} == {f"{tmp_path}/envs/{name}/bin/python" for name in ("old", "new")}


def test_only_a_launcher_that_is_named_changes_the_experiment(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    hashes = []
    for text in ("command: train.py", "command: train.py\nlauncher: torchrun", "command: torchrun train.py"):
        path.write_text(f"{OWN}{text}\n")
        hashes.append(load_runs(path)[1][0].config_hash)
    assert hashes[0] != hashes[1] == hashes[2]


def test_launchers_are_an_axis(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(f"{OWN}matrix: {{command: [deepspeed --no_local_rank train.py, torchrun train.py]}}\n")
    assert [run.config.launcher for run in load_runs(path)[1]] == ["deepspeed", "torchrun"]
    path.write_text(f"{OWN}command: python train.py\nmatrix: {{launcher: [python, srun]}}\nlauncher: python\n")
    assert [run.config.launcher for run in load_runs(path)[1]] == ["python", "srun"]


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("command: python train.py", "command", "starts with python"),
        ("command: accelerate train.py", "command", "starts with accelerate train.py"),
        ("command: torchrun --nnodes 2 train.py", "command", "starts with nodes 2, but the spec's is 1"),
        ("command: torchrun --nproc_per_node 2 train.py\nranks_per_node: 4", "command", "starts with ranks_per_node 2"),
        ("command: torchrun train.py\nlauncher: srun", "command", "starts with launcher torchrun, but"),
        ("command: torchrun --no_python train.py", "command", "--no_python cannot be used here"),
        ("command: torchrun --nproc_per_node 2", "command", "launches no script"),
        ("command: torchrun --role $ROLE train.py", "command", "$ROLE is not expanded"),
        ("command: torchrun missing.py", "command", "no such script"),
        ("command: torchrun data.txt", "command", "data.txt is not a Python script"),
        ("command: srun --gres=gpu:1 python train.py", "command", "--gres cannot be used here"),
        ("command: python -O train.py\nlauncher: python", "command", "-O cannot be used here"),
        ("command: train.py\nlauncher: mpirun", "launcher", "expected"),
        ("command: train.py\nlauncher: python\nranks_per_node: 2", "ranks_per_node", "launcher python starts"),
        ("launcher: torchrun\ntrain: {model: gpt2, dataset: a, global_batch: 1, steps: 1}", "launcher", "is for a"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, field: str, message: str) -> None:
    (problem,) = problems(tmp_path, f"{OWN}{text}\n")
    assert problem.field == field
    assert problem.message.startswith(message)


# Mistakes, told once, before anything runs


@pytest.mark.parametrize(
    ("text", "field", "hint"),
    [
        ("command: [train.py, --lr, {lr}]", "command[2]", QUOTE),
        ("command: [train.py, --lr, null]", "command[2]", "quote it if it is text"),
        ("command: [train.py, [1, 2]]", "command[1]", "quote it if it is text"),
        ("command: [{lr}, 3]", "command[0]", QUOTE),
        ("command: [train.py]\nenv: {LR: {lr}}", "env.LR", QUOTE),
        ("command: [train.py]\nlocal: {setup: [{lr}]}", "local.setup[0]", QUOTE),
        ("command: [train.py]\npython: {lr}", "python", QUOTE),
        ("command: [train.py]\nmetrics: {step: 's (.)', loss: {lr}}", "metrics.loss", None),
    ],
)
def test_what_is_no_text_is_refused_where_it_stands(tmp_path: Path, text: str, field: str, hint: str | None) -> None:
    (problem,) = problems(tmp_path, f"{OWN}{text}\n")
    assert problem.field == field
    assert problem.message.startswith("expected ")
    assert hint is None or problem.hint == hint


@pytest.mark.parametrize(
    "command",
    ["python train.py {depth}", "python3 train.py {depth}", "train.py 'a {depth}", "-m", "[train.py, {depth}]"],
)
@pytest.mark.parametrize("name", ["command", "comand"])
def test_a_wrong_command_is_not_also_missing(tmp_path: Path, command: str, name: str) -> None:
    matrix = "matrix: {depth: [1, 2]}\n" if "depth" in command else ""
    (problem,) = problems(tmp_path, f"{OWN}{name}: {command}\n{matrix}")
    assert problem.field.startswith(name)


@pytest.mark.parametrize("command", ['bash -c "echo hi"', "./run.sh", "run.sh", "data", "srun train.py", "-u train.py"])
def test_a_command_starts_with_a_python_script(tmp_path: Path, command: str) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "data").mkdir()
    (problem,) = problems(tmp_path, f"{OWN}command: {command}\n")
    assert problem.field == "command"
    assert (problem.hint or "").startswith("start with a Python script")
