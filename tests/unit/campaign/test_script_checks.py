"""What `plan` refuses in a command: settings that reach no script, and files that are missing or shared."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dscampaign.orchestrator.cli.main import main

OUTPUTS = "out output save savedir work-dir workdir checkpoint_dir ckpt_dir train.outputDir results save_model_path"
HEAD = "name: x\nexecutor: local\nranks_per_node: 1\n"
SIZED = HEAD + "train: {global_batch: 8, micro_batch: 2}\n"


def plan(folder: Path, text: str, script: str = "") -> int:
    (folder / "train.py").write_text(script)
    (folder / "configs").mkdir(exist_ok=True)
    (folder / "configs" / "small.yaml").write_text("a: 1\n")
    (folder / "spec.yaml").write_text(text)
    return main(["plan", str(folder / "spec.yaml"), "--dir", str(folder / "campaign")])


@pytest.mark.parametrize(
    ("command", "axis", "script", "hint"),
    [
        (
            "--deepspeed_config ds.json",
            "zero_stage: [1, 2]",
            "",
            "--zero_stage {zero_stage} or --deepspeed {ds_config}",
        ),
        ("", "train.lr: [1e-3, 1e-4]", "p.add_argument('--deepspeed')", "add --lr {lr} or --deepspeed {ds_config} to"),
        ("", "train.lr: [1e-3, 1e-4]", "", "add --lr {lr} to `command`, in"),
        ("--lr {{lr}}", "lr: [1e-3, 1e-4]", "", "add --lr {lr}"),
        ("", "seq_len: [1, 2]", "os.environ['CAMPAIGN_DS_CONFIG']", "add --seq_len {seq_len} to"),
        ("", "micro_batch: [1, 2]", "os.environ['CAMPAIGN_SEED']", "add --micro_batch {micro_batch}"),
        (
            "--deepspeed d.json",
            "deepspeed.zero_optimization.overlap_comm: [true, false]",
            "",
            "add --deepspeed {ds_config}",
        ),
        ("", "strategy: [zero1, zero2]", "", "add --strategy {strategy}"),
        (
            "",
            "deepspeed: [{steps_per_print: 1}, {steps_per_print: 2}]",
            "",
            "let the script pass the file in CAMPAIGN_",
        ),
        ("--lr {lr}", "size: [{zero_stage: 1, lr: 1}, {zero_stage: 2, lr: 2}]", "", "add --zero_stage {zero_stage}"),
    ],
)
def test_an_axis_that_reaches_no_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, axis: str, script: str, hint: str
) -> None:
    assert plan(tmp_path, f"{SIZED}command: train.py {command}\nmatrix:\n  {axis}\n", script) != 0
    error = capsys.readouterr().err
    assert "does not reach the script: all its values would run the same" in error
    assert hint in error
    assert "spec.yaml:7:" in error


@pytest.mark.parametrize(
    ("command", "axis", "script"),
    [
        ("train.py --zero {zero_stage}", "zero_stage: [1, 2]", ""),
        ("train.py --deepspeed {ds_config}", "zero_stage: [1, 2]", ""),
        ("train.py", "strategy: [zero1, zero2]", "os.environ['CAMPAIGN_DS_CONFIG']"),
        ("train.py", "train.lr: [1, 2]", "os.environ['CAMPAIGN_DS_CONFIG']"),
        ("train.py", "micro_batch: [1, 2]", "os.environ['CAMPAIGN_ACCUMULATION']"),
        ("train.py --b {micro_batch}", "global_batch: [8, 16]", ""),
        ("train.py", "seed: [1, 2]", "os.environ['CAMPAIGN_' + 'SEED']"),
        ("train.py", "env.LR: [1, 2]", ""),
        ("train.py --z {overlap_comm}", "deepspeed.zero_optimization.overlap_comm: [true, false]", ""),
        ("train.py --c {c}", "z: [{zero_stage: 1, c: one}, {zero_stage: 2, c: two}]", ""),
        ("train.py", "z: [{zero_stage: 1, env.ZERO: 1}, {zero_stage: 2, env.ZERO: 2}]", ""),
        ("-m somewhere.else", "lr: [1, 2]", ""),
        ("/nowhere/on/this/machine", "lr: [1, 2]", ""),
    ],
)
def test_an_axis_that_may_reach_the_script(tmp_path: Path, command: str, axis: str, script: str) -> None:
    head = SIZED.replace("local", "slurm") if command.startswith("/") else SIZED
    assert plan(tmp_path, f"{head}command: {command}\nmatrix:\n  {axis}\n", script) == 0


@pytest.mark.parametrize(
    ("arguments", "repeats", "words"),
    [
        ("--output_dir out/clm", 2, "--output_dir out/clm is the same folder for several runs: run, run-r1"),
        ("--logging-dir=logs", 2, "write logs/{run}, or {checkpoint_dir}"),
        ("trainer.default_root_dir=out", 2, "trainer.default_root_dir out is the same folder"),
        ("--output_dir out/clm", 1, ""),
        ("--output_dir out/{run}", 2, ""),
        ("--output_dir {checkpoint_dir} --logging_dir {run_dir}/logs", 2, ""),
        ("--output_dir /dev/null --data_dir data", 2, ""),
        *((f"--{name} out", 2, f"--{name} out is the same folder") for name in OUTPUTS.split()),
        ("hydra.run.dir=out", 2, "hydra.run.dir out is the same folder"),
        ("--ckpt-path model.pt", 2, "--ckpt-path model.pt is the same file for several runs"),
        ("--ckpt-path train.py --load_checkpoint_dir ck --resume_from_checkpoint out/1", 2, ""),
        ("--pretrained-ckpt-path out/a.pt --init_checkpoint_dir out --checkpoint_dir /models/base", 2, ""),
        ("--save best --output 100 --log wandb --run_name out --logging_steps 5 --cache_dir out", 2, ""),
    ],
)
def test_a_folder_that_all_runs_would_write_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str, repeats: int, words: str
) -> None:
    status = plan(tmp_path, f"{HEAD}command: train.py {arguments}\nrepeats: {repeats}\n")
    assert (status != 0) is bool(words)
    assert words in capsys.readouterr().err
    assert main(["validate", str(tmp_path / "spec.yaml")]) == status
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            "command: train.py --config configs/{size}.yaml\nmatrix: {size: [small, large]}\n",
            "configs/large.yaml (run size-large)",
        ),
        ("command: accelerate launch --config_file configs/own.yaml train.py\n", "configs/own.yaml (run "),
        ("command: train.py --config-name base.yaml --save out.json --trace {run_dir}/t.json\n", ""),
        ("command: train.py --config elsewhere/base.yaml\n", ""),
        ("command: train.py\npython: llm-env\n", "no such program: llm-env"),
        (f"command: train.py\npython: {Path(sys.executable).parent}/python9.9\nexecutor: slurm\n", "no such program"),
        ("command: train.py\npython: llm-env\nlocal: {setup: [export PATH=/envs:$PATH]}\n", ""),
    ],
)
def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: str, words: str) -> None:
    head = HEAD.replace("executor: local\n", "") if "executor" in spec else HEAD
    assert (plan(tmp_path, head + spec) != 0) is bool(words)
    assert words in capsys.readouterr().err


def test_the_plan_shows_the_launcher_and_marks_remarks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slurm = "slurm: {gpus_per_node: 1, time: '4:00'}\n"
    assert plan(tmp_path, f"name: x\n{slurm}command: deepspeed train.py --out {{run}}\n") == 0
    page = capsys.readouterr().out
    assert f"runs `deepspeed {tmp_path}/train.py --out run`" in page
    assert '\nnote: slurm.time "4:00" is 4 minutes for Slurm' in page
    for launcher, note in (("torchrun --nproc_per_node 2", "2 ranks on a node with 1 GPU: NCCL"), ("torchrun", "")):
        assert plan(tmp_path, f"name: x\n{slurm}command: {launcher} train.py\n") == 0
        assert ("`command` starts" in (page := capsys.readouterr().out)) is bool(note)
        assert note in page


def test_the_plan_shows_the_partition_only_if_runs_differ_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "name: x\nslurm: {gpus_per_node: 1, partition: p}\ncommand: train.py --b {b}\n"
    assert plan(tmp_path, head + "matrix: {b: [1, 2]}\n") == 0
    assert "PARTITION" not in capsys.readouterr().out
    assert plan(tmp_path, head + "matrix: {b: [1, 2], slurm.partition: [p, q]}\n") == 0
    assert "PARTITION" in capsys.readouterr().out
