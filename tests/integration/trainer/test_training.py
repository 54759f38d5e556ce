"""The trainer on two CPU ranks: what must not change the loss, does not."""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dscampaign.jobs import rank
from dscampaign.jobs.shared import checkpoint, checkpoint_retention
from dscampaign.tests.integration.trainer.attempts import CONFIG_HASH, TEXT, WORLD_SIZE, Attempt
from dscampaign.tests.integration.trainer.conftest import Launch
from dscampaign.tests.support.waiting import wait_until

pytestmark = pytest.mark.training

STATIC_SCALE = {"fp16": {"loss_scale": 128}}  # the dynamic one begins so high that steps are skipped, not the same ones
TAG = "deepspeed"
TRAINER = ("-m", "dscampaign.jobs.trainer")

PADDED = {"dataset": {"path": str(TEXT), "eval_fraction": 0.01, "packing": False}}


@pytest.fixture(scope="module")
def trained(train_many: Callable[..., dict[str, Attempt]]) -> dict[str, Attempt]:
    """One attempt for each thing that should make no difference."""
    return train_many(
        zero1={"checkpoint_every": 3, "keep_checkpoints": 5},
        zero3={"zero_stage": 3, "checkpoint_every": 3, "keep_checkpoints": 5},
        micro4={"micro_batch": 4},
        zero0_bf16={"zero_stage": 0, "precision": "bf16"},
        zero1_bf16={"precision": "bf16"},
        zero0_fp16={"zero_stage": 0, "precision": "fp16", "deepspeed": STATIC_SCALE},
        zero1_fp16={"precision": "fp16", "deepspeed": STATIC_SCALE},
        recomputed={"activation_checkpointing": True, "zero_stage": 3},
        dropout={"dropout": 0.2, "checkpoint_every": 3, "keep_checkpoints": 5},
        one_epoch={"steps": None, "epochs": 0.002, "eval_batches": None},
        sparse={"log_every": 4, "eval_every": 4},
        padded=PADDED,
        padded_micro4={**PADDED, "micro_batch": 4},
        profiled={"profile_at": 5, "steps": 10, "untimed_steps": 2},
        profiled_to_the_end={"profile_at": 5},
        best={"checkpoint_every": 2, "eval_every": 2, "keep_checkpoints": 1, "keep_best": True, "lr": 1.0},
    )


def same(found: dict[int, float], expected: dict[int, float], tolerance: float) -> None:
    assert found == pytest.approx(expected, abs=tolerance)


def test_padded_samples_learn_the_padding_first(trained: dict[str, Attempt]) -> None:
    """It is half of the text's lines: the loss falls faster than that of packed text."""
    assert trained["padded_micro4"].values("loss") == pytest.approx(trained["padded"].values("loss"), abs=1e-5)
    packed, padded = (list(trained[name].values("loss").values()) for name in ("zero1", "padded"))
    assert padded[0] == pytest.approx(packed[0], rel=0.1)
    assert padded[-1] < packed[-1] - 0.05
    assert trained["padded"].values("eval_loss")[6] == pytest.approx(padded[-1], rel=0.2)


def test_reports_every_step(trained: dict[str, Attempt]) -> None:
    steps = [line for line in trained["zero1"].lines() if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    for line in steps:
        assert line["tokens_per_s"] == pytest.approx(8 * 32 / line["step_time"])
        assert line["samples_seen"] == line["step"] * 8
        assert 0.1 < line["mem_allocated"] <= line["mem_reserved"] < 4


def test_reports_only_some_steps_on_request(trained: dict[str, Attempt]) -> None:
    assert list(trained["sparse"].values("loss")) == [3, 4, 6]  # the third ends the warm-up


def test_profiles_three_steps_and_leaves_them_out_of_the_speed(trained: dict[str, Attempt]) -> None:
    attempt = trained["profiled"]
    folder = Path(attempt.event("profile")["folder"])
    assert folder == attempt.dir / "profile"
    assert "aten::addmm" in (folder / "operators.txt").read_text()
    forwards = [each for each in operators(folder) if each["name"] == "aten::embedding"]
    assert len(forwards) == 3 * 2 * 2  # steps, micro-batches, tables
    assert attempt.event("speed")["steps"] == 10 - 2 - 3
    assert list(attempt.values("loss")) == list(range(1, 11))
    assert attempt.values("step_time").keys() == attempt.values("tokens_per_s").keys() == {1, 2, 3, 4, 8, 9, 10}


def test_a_profile_ends_with_the_last_step(trained: dict[str, Attempt]) -> None:
    attempt = trained["profiled_to_the_end"]
    forwards = [each for each in operators(attempt.dir / "profile") if each["name"] == "aten::embedding"]
    assert len(forwards) == 2 * 2 * 2
    assert attempt.values("loss") == trained["zero1"].values("loss")
    assert not (trained["zero1"].dir / "profile").exists()


def operators(folder: Path) -> list[dict[str, Any]]:
    """Of a profile's trace."""
    with gzip.open(folder / "trace.json.gz", "rt") as trace:
        return [each for each in json.load(trace)["traceEvents"] if each.get("cat") == "cpu_op"]


def test_starts_from_ignorance_and_learns(trained: dict[str, Attempt]) -> None:
    losses = trained["zero1"].values("loss")
    assert losses[1] == pytest.approx(math.log(257), abs=0.1)
    assert losses[6] < losses[1] - 0.1


@pytest.mark.parametrize("name", ["zero3", "micro4"])
def test_neither_the_stage_nor_the_micro_batch_changes_anything(trained: dict[str, Attempt], name: str) -> None:
    for metric in ("loss", "grad_norm", "eval_loss", "lr"):
        same(trained[name].values(metric), trained["zero1"].values(metric), 1e-4)


def test_activation_checkpointing_changes_nothing(trained: dict[str, Attempt]) -> None:
    same(trained["recomputed"].values("loss"), trained["zero3"].values("loss"), 1e-5)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_without_zero_takes_the_same_steps(trained: dict[str, Attempt], precision: str) -> None:
    """DeepSpeed's trial step at start and its forgotten loss scale made these differ by 0.03 at step 2."""
    for metric, tolerance in (("loss", 2e-3), ("grad_norm", 2e-2)):
        same(trained[f"zero0_{precision}"].values(metric), trained[f"zero1_{precision}"].values(metric), tolerance)


def test_evaluates_when_due_and_at_the_end(trained: dict[str, Attempt]) -> None:
    held_out = trained["sparse"].values("eval_loss")
    assert list(held_out) == [4, 6]
    assert held_out[6] == trained["zero1"].values("eval_loss")[6]
    same(trained["sparse"].values("eval_ppl"), {step: math.exp(loss) for step, loss in held_out.items()}, 1e-6)


def test_epochs_decide_the_target(trained: dict[str, Attempt]) -> None:
    attempt = trained["one_epoch"]
    steps = attempt.event("target")["steps"]
    assert attempt.lines()[0]["event"] == "target"
    assert steps == len(attempt.values("loss")) == 2  # 9,200 samples in batches of 8, 0.002 of them


def test_reports_memory_before_the_first_step_and_after_the_third(trained: dict[str, Attempt]) -> None:
    lines = trained["zero1"].lines()
    before, after = (place for place, line in enumerate(lines) if line.get("event") == "memory")
    first = next(place for place, line in enumerate(lines) if line.get("step") == 1 and "loss" in line)
    third = next(place for place, line in enumerate(lines) if line.get("step") == 3 and "loss" in line)
    assert before < first < third < after
    assert 0.1 < lines[after]["peak_allocated_gb"] <= lines[after]["peak_reserved_gb"] < 100
    assert "usable_gb" not in lines[before]  # nothing limits a rank on CPUs
    for place in (before, after):
        assert (lines[place]["micro_batch"], lines[place]["device"]) == (2, "cpu")


def test_reports_what_speed_is_judged_by(trained: dict[str, Attempt]) -> None:
    start = trained["zero1"].event("start")
    blocks = 2 * (12 * 32 * 32 + 13 * 32)
    assert start["parameters"] == blocks + 257 * 32 + 1024 * 32 + 2 * 32  # the 127 rows of padding are no parameters
    assert start["matrix_parameters"] == 2 * 12 * 32 * 32 + 257 * 32
    assert start["flops_per_token"] == 6 * start["matrix_parameters"] + 12 * 2 * 32 * 32


def test_checkpoints_are_complete(trained: dict[str, Attempt]) -> None:
    folder = trained["zero1"].checkpoints
    assert sorted(path.name for path in folder.iterdir()) == ["g0001-step00000003", "g0001-step00000006"]
    newest = checkpoint.newest_verified(folder, CONFIG_HASH, WORLD_SIZE)
    assert newest is not None
    assert (newest.step, newest.manifest.samples_seen) == (6, 48)
    assert len(newest.manifest.files) == 3  # the model, and the optimizer's shard of each rank


def test_the_best_checkpoint_stays(trained: dict[str, Attempt]) -> None:
    losses = trained["best"].values("eval_loss")
    best = min(losses, key=lambda step: losses[step])
    assert best < 6, "this learning rate is meant to make it worse"
    kept = [checkpoint.verify(path).manifest for path in sorted(trained["best"].checkpoints.iterdir())]
    assert [(manifest.step, manifest.eval_loss) for manifest in kept] == [(best, losses[best]), (6, losses[6])]


@pytest.fixture(scope="module")
def continued(trained: dict[str, Attempt], train_many: Callable[..., dict[str, Attempt]]) -> dict[str, Attempt]:
    """Attempts that begin at others' checkpoints, or are to end before they begin."""
    return train_many(
        zero1={"resume": trained["zero1"].checkpoints / "g0001-step00000003", "micro_batch": 4},
        dropout={"resume": trained["dropout"].checkpoints / "g0001-step00000003", "dropout": 0.2},
        stopped={"stop": True},
        finished={"resume": trained["zero1"].checkpoints / "g0001-step00000006"},
        unrated={"resume": trained["zero1"].checkpoints / "g0001-step00000003", "eval_every": 3},
    )


@pytest.mark.parametrize(("name", "tolerance"), [("dropout", 0.0), ("zero1", 1e-4)])
def test_resumes_to_the_sample(
    trained: dict[str, Attempt], continued: dict[str, Attempt], name: str, tolerance: float
) -> None:
    """Steps 4 to 6 are those of the run that was never interrupted; with another micro-batch, up to rounding."""
    for metric in ("loss", "grad_norm", "lr"):
        expected = {step: value for step, value in trained[name].values(metric).items() if step > 3}
        same(continued[name].values(metric), expected, tolerance)
    assert continued[name].event("start")["step"] == 3


def test_a_run_killed_in_its_last_evaluation_only_evaluates(
    trained: dict[str, Attempt], continued: dict[str, Attempt]
) -> None:
    for metric in ("loss", "lr", "grad_norm", "step_time"):  # of the last step, which the checkpoint remembers
        assert continued["finished"].values(metric)[6] == trained["zero1"].values(metric)[6]
    assert list(continued["finished"].values("loss")) == [6]
    assert continued["finished"].values("eval_loss") == trained["zero1"].values("eval_loss")


def test_a_run_killed_between_saving_and_evaluating_evaluates_first(
    trained: dict[str, Attempt], continued: dict[str, Attempt]
) -> None:
    found = continued["unrated"]
    assert list(found.values("eval_loss")) == [3, 6]
    assert found.values("loss")[3] == trained["zero1"].values("loss")[3]
    assert found.values("eval_loss")[6] == pytest.approx(trained["zero1"].values("eval_loss")[6], abs=1e-6)


def test_stops_on_the_stop_file(continued: dict[str, Attempt]) -> None:
    attempt = continued["stopped"]
    assert list(attempt.values("loss")) == [1, 2]
    assert [path.name for path in attempt.checkpoints.iterdir()] == ["g0001-step00000002"]
    assert not attempt.values("eval_loss")


def test_leaves_with_a_checkpoint_when_one_rank_is_signalled(launch: Launch, data_dir: Path, tmp_path: Path) -> None:
    attempt = Attempt(tmp_path / "run")
    environment = attempt.prepare(data_dir, steps=100_000)
    (attempt.dir / "ranks").mkdir()
    environment["CAMPAIGN_PROGRESS_DIR"] = str(tmp_path)
    process = launch(rank.__file__, *TRAINER, env=environment)
    wait_until(lambda: process.poll() is not None or (attempt.started and bool(attempt.values("loss"))), "a step")
    os.kill(json.loads((attempt.dir / "ranks/rank-1.json").read_text())["pid"], signal.SIGUSR2)
    code, output = process.finish()
    assert code == 0, output
    newest = checkpoint.newest_verified(attempt.checkpoints, CONFIG_HASH, WORLD_SIZE)
    assert newest is not None
    assert list(attempt.values("loss")) == list(range(1, newest.step + 1))
    assert not attempt.values("eval_loss")
    for record in (tmp_path / "rank-0", tmp_path / "rank-1"):
        found = json.loads(record.read_text())
        assert (found["step"], found["phase"]) == (newest.step, "train")


def test_diverged_training_fails_and_has_reported_it(launch: Launch, data_dir: Path, tmp_path: Path) -> None:
    attempt = Attempt(tmp_path / "run")
    code, output = launch(*TRAINER, env=attempt.prepare(data_dir, lr=1e30, grad_clip=0.0, steps=50)).finish()
    assert code != 0  # 1, or -6 if gloo aborts a rank whose peer was faster to leave
    *finite, last = attempt.values("loss").values()
    assert all(math.isfinite(loss) for loss in finite)
    assert not math.isfinite(last)
    assert f"FloatingPointError: non-finite loss {last} at step {len(finite) + 1}" in output


class Call:
    """A pickle of it calls something when it is read."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self._marker),)


def test_nothing_that_a_checkpoint_would_call_is_called(
    trained: dict[str, Attempt], launch: Launch, data_dir: Path, tmp_path: Path
) -> None:
    """Not even if its digests fit: whoever wrote it may have written those too."""
    attempt, marker = Attempt(tmp_path / "run", generation=2), tmp_path / "called"
    environment = attempt.prepare(data_dir, resume=attempt.checkpoints / "g0001-step00000003")
    shutil.copytree(trained["zero1"].checkpoints, attempt.checkpoints, dirs_exist_ok=True)
    planted = attempt.checkpoints / "g0001-step00000003"
    shards = sorted((planted / TAG).glob("zero_pp_rank_*"))
    for shard in shards:
        state = torch.load(shard, weights_only=False)
        torch.save({**state, "planted": Call(marker)}, shard)
    manifest = checkpoint.read_manifest(planted)
    checkpoint.write_manifest(planted, replace(manifest, files={**manifest.files, **checkpoint.seal(planted, shards)}))
    code, output = launch(*TRAINER, env=environment).finish()
    assert code != 0
    assert not marker.exists(), output
    assert "weights_only" in output


@pytest.mark.nightly
def test_a_checkpoint_that_cannot_be_loaded_is_not_tried_twice(
    trained: dict[str, Attempt], launch: Launch, data_dir: Path, tmp_path: Path
) -> None:
    attempt = Attempt(tmp_path / "run", generation=2)
    environment = attempt.prepare(data_dir, resume=attempt.checkpoints / "g0001-step00000006")
    shutil.copytree(trained["zero1"].checkpoints, attempt.checkpoints, dirs_exist_ok=True)
    bad = attempt.checkpoints / "g0001-step00000006"
    shard = next((bad / TAG).glob("zero_pp_rank_1_*"))
    shard.write_bytes(shard.read_bytes()[:-1000])
    manifest = checkpoint.read_manifest(bad)
    checkpoint.write_manifest(bad, replace(manifest, files={**manifest.files, **checkpoint.seal(bad, [shard])}))
    assert checkpoint.verify(bad)
    code, output = launch(*TRAINER, env=environment).finish()
    assert code != 0
    assert "CheckpointError: " in output
    assert "later attempts begin at the checkpoint before it" in output
    newest = checkpoint.newest_verified(attempt.checkpoints, CONFIG_HASH, WORLD_SIZE)
    assert newest is not None
    assert newest.step == 3


def test_a_disk_that_is_full_in_the_middle_of_a_checkpoint_keeps_nothing_of_it(
    launch: Launch, data_dir: Path, tmp_path: Path
) -> None:
    attempt = Attempt(tmp_path / "run")
    environment = attempt.prepare(data_dir, checkpoint_every=2)
    script = tmp_path / "full.py"
    script.write_text("""
import resource, signal
from dscampaign.jobs.trainer import train
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
load = train.load
def full_from_now_on(*arguments, **options):
    data = load(*arguments, **options)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    return data
train.load = full_from_now_on
train.main()
""")
    code, output = launch(str(script), env=environment).finish()
    assert code != 0
    assert "OSError: [Errno 27] File too large for a checkpoint: " in output
    assert [path for path in attempt.checkpoints.rglob("*") if path.is_file()] == []
    checkpoint_retention.remove_drafts(attempt.checkpoints, attempt.generation + 1)  # as the agent does then
    assert list(attempt.checkpoints.iterdir()) == []
    assert list(attempt.values("loss")) == [1, 2]


@pytest.mark.nightly
def test_all_ranks_give_up_on_a_disk_without_room(launch: Launch, data_dir: Path, tmp_path: Path) -> None:
    attempt = Attempt(tmp_path / "run")
    environment = attempt.prepare(data_dir, checkpoint_every=2)
    script = tmp_path / "full.py"
    script.write_text("""
import os, shutil, types
from dscampaign.jobs.trainer.engine import leave_process_group
from dscampaign.jobs.trainer.train import main
shutil.disk_usage = lambda _: types.SimpleNamespace(free=100_000)
try:
    main()
except OSError as error:
    print(f"RANK {os.environ['RANK']}: {error}", flush=True)
leave_process_group()
""")
    code, output = launch(str(script), env=environment).finish()
    assert code == 0
    for number in range(WORLD_SIZE):
        assert f"RANK {number}: [Errno 28] No space left on device for a checkpoint: it needs 0.00 GB" in output
    assert [path.name for path in attempt.checkpoints.iterdir()] == ["g0001-step00000002"]  # its size is the measure
