"""Strategies by one word, what they mean for DeepSpeed, and what is refused when the spec is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dscampaign.orchestrator.errors import InvalidSpec, SpecError
from dscampaign.orchestrator.spec.expand import Run, expand
from dscampaign.orchestrator.spec.model import STRATEGIES
from dscampaign.tests.support.spec_files import load_spec

NVME = {"nvme_path": "/local/nvme"}
FP8 = {"precision": "fp8", "model": "meta-llama/Llama-3.2-1B"}


def runs(tmp_path: Path, **changes: Any) -> dict[str, Run]:
    """The runs of a small spec by name; sections are laid over its own."""
    train = {"model": "gpt2", "dataset": "wikitext", "global_batch": 64, "steps": 10, **changes.pop("train", {})}
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump({"name": "s", "train": train, **changes}))
    return {run.name: run for run in expand(load_spec(spec))}


def run(tmp_path: Path, **changes: Any) -> Run:
    [only] = runs(tmp_path, **changes).values()
    return only


def problems(tmp_path: Path, **changes: Any) -> list[str]:
    with pytest.raises((SpecError, InvalidSpec)) as caught:
        runs(tmp_path, **changes)
    assert isinstance(caught.value, SpecError)
    return [f"{problem.field}: {problem.message}" for problem in caught.value.problems]


@pytest.mark.parametrize("word", STRATEGIES)
def test_a_word_is_its_fields(tmp_path: Path, word: str) -> None:
    more = NVME if word == "zero-infinity" else {}
    by_word = run(tmp_path, train={"strategy": word, **more})
    by_fields = run(tmp_path, train={**STRATEGIES[word], **more})
    assert by_word.config_hash == by_fields.config_hash
    assert by_word.stored_config == by_fields.stored_config
    assert "strategy" not in by_word.config.train_json(micro_batch=1, accumulation=1, world_size=1)


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ({"strategy": "zero2", "zero_stage": 3}, "train.strategy: zero2 means zero_stage 2, but train.zero_stage is 3"),
        ({"engine": "ddp", "zero_stage": 1}, "train.zero_stage: zero_stage 1 does not work with engine ddp"),
        ({"engine": "fsdp2", "zero_stage": 3}, "train.zero_stage: zero_stage 3 does not work with engine fsdp2"),
        ({"engine": "fsdp2", "offload": "nvme", "nvme_path": "/x"}, "train.offload: offload nvme does not work"),
        (
            {"engine": "fsdp2", "offload": "optimizer"},
            "train.offload: offload optimizer does not work with engine fsdp2",
        ),
        ({"offload": "optimizer"}, "train.offload: optimizer needs ZeRO"),
        ({"zero_stage": 2, "offload": "full"}, "train.offload: full needs ZeRO 3"),
        ({"strategy": "zero-infinity", "checkpoint_every": 5, **NVME}, "train.checkpoint_every: has no effect"),
        ({"deepcompile": True}, "train.deepcompile: zero_stage 0 does not work with deepcompile"),
        ({"zero_stage": 3, "fused_loss": True}, "train.zero_stage: zero_stage 3 does not work with fused_loss"),
        (
            {"attention": "flash_attention_2", "precision": "fp32"},
            "train.precision: precision fp32 does not work with attention",
        ),
        ({**FP8, "zero_stage": 3}, "train.zero_stage: zero_stage 3 does not work with precision fp8"),
        ({**FP8, "model": "gpt2"}, "train.precision: fp8 does not work with GPT-2"),
        ({**FP8, "seq_len": 100}, "train.seq_len: fp8 needs samples of a multiple of 16"),
    ],
)
def test_what_cannot_work_is_refused_with_its_place(tmp_path: Path, train: dict[str, Any], expected: str) -> None:
    [found] = problems(tmp_path, train=train)
    assert found.startswith(expected)


def test_a_clash_is_told_where_a_field_varies(tmp_path: Path) -> None:
    found = problems(tmp_path, train={"fused_loss": True}, matrix={"zero_stage": [0, 1, 2, 3]})
    assert [one.partition(": ")[0] for one in found] == ["matrix.zero_stage[3]"]
    found = problems(tmp_path, train={"strategy": "zero3"}, matrix={"fused_loss": [True, False]})
    assert [one.partition(": ")[0] for one in found] == ["matrix.fused_loss[0]"]


@pytest.mark.parametrize(
    "train", [{"zero_stage": 1, "deepcompile": True}, {"precision": "tf32"}, {"attention": "flash_attention_2"}]
)
def test_what_needs_gpus_is_refused_without_them(tmp_path: Path, train: dict[str, Any]) -> None:
    assert run(tmp_path, train=train)
    for without in ({"slurm": {"gpus_per_node": 0}}, {"env": {"DS_ACCELERATOR": "cpu"}}):
        [found] = problems(tmp_path, train=train, **without)
        assert "GPUs" in found
