"""The Hugging Face Trainer's callback, without a training; `test_examples` trains with it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerControl, TrainerState, TrainingArguments

from dscampaign import hf


def test_a_checkpoint_that_was_cut_short_is_passed_over(tmp_path: Path) -> None:
    assert hf.last_checkpoint(tmp_path / "none") is None
    for step, state in ((8, '{"global_step": 8}'), (20, '{"global_step": 20}'), (30, '{"global_s'), (100, None)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "model.safetensors").write_text("weights")
        if state is not None:
            (folder / "trainer_state.json").write_text(state)
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-best" / "trainer_state.json").write_text('{"global_step": 7}')
    assert hf.last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-20")


def test_what_a_trainer_logs_beside_numbers_ends_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, Any]] = []
    monkeypatch.setenv("CAMPAIGN_METRICS_FILE", str(tmp_path / "metrics.jsonl"))
    monkeypatch.setattr(hf, "report", lambda step, **values: lines.append({"step": step, **values}))
    arguments, state = TrainingArguments(output_dir=str(tmp_path), use_cpu=True), TrainerState(global_step=3)
    numbers = {"loss": 2.5, "learning_rate": 1e-3, "reward": torch.tensor([0.5])}
    others = {"step": 7, "ts": 1.0, "heads": torch.zeros(2), "none": torch.zeros(0), "text": "words", "in": {"a": 1}}
    hf.CampaignCallback().on_log(arguments, state, TrainerControl(), logs=numbers | others)
    assert lines == [{"step": 3, "loss": 2.5, "lr": 1e-3, "reward": torch.tensor([0.5])}]


@pytest.mark.parametrize(("precision", "kept"), [({}, False), ({"bf16": True}, False), ({"fp16": True}, True)])
def test_the_mean_of_the_losses_that_were_numbers_is_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: dict[str, bool], kept: bool
) -> None:
    """A step whose gradient is not finite is skipped in fp16; else it ends the weights."""
    lines: list[dict[str, Any]] = []
    monkeypatch.setenv("CAMPAIGN_METRICS_FILE", str(tmp_path / "metrics.jsonl"))
    monkeypatch.setattr(hf, "report", lambda _step, **values: lines.append(values))
    arguments, state = TrainingArguments(output_dir=str(tmp_path), use_cpu=True), TrainerState(global_step=3)
    for name, value in precision.items():
        setattr(arguments, name, value)
    for norm in (1.0, math.nan):
        hf.CampaignCallback().on_log(arguments, state, TrainerControl(), logs={"loss": 1.25, "grad_norm": norm})
    assert lines[0]["loss"] == 1.25
    assert math.isfinite(lines[1]["loss"]) is kept
