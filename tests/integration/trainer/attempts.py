"""Attempts of the trainer as an agent would prepare them, on two CPU ranks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dscampaign.jobs.shared.ds_config import render
from dscampaign.jobs.shared.state_layout import ranks_per_sample
from dscampaign.jobs.trainer.config import TrainerConfig
from dscampaign.orchestrator.spec.model import RunConfig, TrainConfig
from dscampaign.tests.support import REPOSITORY

TEXT = REPOSITORY / "examples/data/wikitext.txt"
WORLD_SIZE = 2
ON_CPU = {"DS_ACCELERATOR": "cpu"}
CONFIG_HASH = "0123456789abcdef"
TINY: dict[str, Any] = {
    "model": {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2},
    "tokenizer": "bytes",
    "dataset": {"path": str(TEXT), "eval_fraction": 0.01},
    "seq_len": 32,
    "global_batch": 8,
    "micro_batch": 2,
    "world_size": WORLD_SIZE,
    "steps": 6,
    "precision": "fp32",
    "zero_stage": 1,
    "lr": 1e-3,
    "warmup_steps": 2,
    "weight_decay": 0.1,
    "grad_clip": 1.0,
    "eval_batches": 4,
    "seed": 7,
}

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
"""Another architecture, as small."""


def train_json(**changes: Any) -> dict[str, Any]:
    """What a campaign writes for the trainer: ``TINY`` with these changes, and the spec's defaults."""
    given = {**TINY, **changes}
    search = {name: given.pop(name) for name in ("search",) if name in given}
    micro_batch, world_size = given["micro_batch"], given.pop("world_size")
    accumulation = given["global_batch"] * ranks_per_sample(given) // (micro_batch * world_size)
    spec = RunConfig(train=TrainConfig(**{name: value for name, value in given.items() if value is not None}))
    return spec.train_json(micro_batch=micro_batch, accumulation=accumulation, world_size=world_size) | search


def train_config(**changes: Any) -> TrainerConfig:
    """The same, as the trainer reads it."""
    return TrainerConfig.from_json(json.dumps(train_json(**changes)))


@dataclass(frozen=True)
class Attempt:
    """One attempt's folder below the run's."""

    run_dir: Path
    generation: int = 1

    @property
    def dir(self) -> Path:
        return self.run_dir / f"g{self.generation:04d}"

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints"

    @property
    def stop_file(self) -> Path:
        return self.dir / "stop"

    def prepare(
        self,
        data_dir: Path,
        resume: Path | None = None,
        stop: bool = False,
        deepspeed: dict[str, Any] | None = None,
        **changes: Any,
    ) -> dict[str, str]:
        """Writes the attempt's files, with fields of `train.json` that differ from `TINY`, and asks it to `stop`.

        Returns the environment of its ranks.
        """
        train = train_json(**changes)
        batch = {name: train[name] for name in ("micro_batch", "accumulation", "world_size")}
        self.dir.mkdir(parents=True)
        self.checkpoints.mkdir(exist_ok=True)
        if stop:
            self.stop_file.touch()
        (self.dir / "train.json").write_text(json.dumps(train))
        (self.dir / "ds_config.json").write_text(json.dumps(render(train, **batch, overrides=deepspeed or {})))
        return {
            "CAMPAIGN_METRICS_FILE": str(self.dir / "metrics.jsonl"),
            "CAMPAIGN_ATTEMPT_DIR": str(self.dir),
            "CAMPAIGN_RUN_DIR": str(self.run_dir),
            "CAMPAIGN_CHECKPOINT_DIR": str(self.checkpoints),
            "CAMPAIGN_RESUME": str(resume or ""),
            "CAMPAIGN_DS_CONFIG": str(self.dir / "ds_config.json"),
            "CAMPAIGN_TRAIN_CONFIG": str(self.dir / "train.json"),
            "CAMPAIGN_STOP_FILE": str(self.stop_file),
            "CAMPAIGN_GENERATION": str(self.generation),
            "CAMPAIGN_CONFIG_HASH": CONFIG_HASH,
            "CAMPAIGN_DATA_DIR": str(data_dir),
            **ON_CPU,
        }

    @property
    def started(self) -> bool:
        """Whether it has reported anything."""
        return (self.dir / "metrics.jsonl").exists()

    def lines(self) -> list[dict[str, Any]]:
        """Everything the attempt has reported."""
        return [json.loads(line) for line in (self.dir / "metrics.jsonl").read_text().splitlines()]

    def values(self, name: str) -> dict[int, float]:
        """One metric by step."""
        return {line["step"]: line[name] for line in self.lines() if name in line and "event" not in line}

    def event(self, name: str) -> dict[str, Any]:
        """The one event of that name."""
        [found] = [line for line in self.lines() if line.get("event") == name]
        return found


def require_same(found: Attempt, expected: Attempt, after: int = 0, tolerance: float = 2e-6) -> None:
    """Require equal losses and gradients at the steps after one."""
    for metric in ("loss", "grad_norm", "eval_loss"):
        wanted = {step: value for step, value in expected.values(metric).items() if step > after}
        assert wanted
        assert found.values(metric) == pytest.approx(wanted, abs=tolerance)
