"""Ranks that share layers learn what ranks with whole layers learn; `test_strategies` has the proof of every day."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from dscampaign.jobs.shared import checkpoint
from dscampaign.jobs.trainer.transformers_folder import WeightsRequest, write
from dscampaign.tests.integration.trainer.attempts import LLAMA, TINY, Attempt, require_same
from dscampaign.tests.integration.trainer.conftest import selected
from dscampaign.tests.integration.trainer.test_transformers_folder import held_out_loss

pytestmark = [pytest.mark.nightly, pytest.mark.training]

TrainMany = Callable[..., dict[str, Attempt]]

STEPS, HALF = 8, 4
BASE: dict[str, Any] = {"steps": STEPS}
GPT2: dict[str, Any] = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4}
LLAMA_KV2: dict[str, Any] = {**LLAMA, "num_key_value_heads": 2}
SHARED: dict[str, dict[str, Any]] = {
    **{f"zero{stage}": {"zero_stage": stage} for stage in range(3)},
    "accumulated": {"micro_batch": 1},
    "fused-loss": {"fused_loss": True},
    "recomputed": {"activation_checkpointing": True},
    "compiled": {"compile": True, "zero_stage": 1},
    "sdpa": {"attention": "sdpa"},
    "eager": {"attention": "eager"},
    "unclipped": {"grad_clip": 0.0},
    **{f"zero{stage}-offload": {"zero_stage": stage, "offload": "optimizer"} for stage in (1, 2)},
}
"""In fp32, each beside data parallel training of the same kind."""
FAMILIES: dict[str, dict[str, Any]] = {
    kind: {**LLAMA_KV2, "model_type": kind, "pad_token_id": None} for kind in ("llama", "qwen2", "qwen3", "smollm3")
} | {
    "gpt_neox": {**LLAMA, "model_type": "gpt_neox"},
    "opt": {**LLAMA, "model_type": "opt", "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
}
HALVES: dict[str, dict[str, Any]] = {
    f"{kind} zero{stage}": {"precision": kind, "zero_stage": stage} for kind in ("bf16", "fp16") for stage in range(3)
}
FOUR: dict[str, dict[str, Any]] = {
    "gpt2 zero2": {"model": GPT2, "zero_stage": 2},
    "gpt2 bf16 zero0": {"model": GPT2, "zero_stage": 0, "precision": "bf16"},
    "gpt2 bf16 zero2": {"model": GPT2, "zero_stage": 2, "precision": "bf16"},
    "llama zero0": {"model": LLAMA_KV2, "zero_stage": 0},
    "llama bf16 zero1": {"model": LLAMA_KV2, "zero_stage": 1, "precision": "bf16"},
}
"""Four ranks, two to a layer."""
RESUMED: tuple[str, ...] = ("gpt2 bf16 zero0", "gpt2 zero2", "llama bf16 zero1")
FOUR_APART: dict[str, float] = {name: 5e-3 if "bf16" in name else 2e-6 for name in FOUR}


@pytest.fixture(scope="module")
def two(
    request: pytest.FixtureRequest, train_many: TrainMany, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Attempt, Attempt]]:
    """Attempts on two ranks, that share layers and that do not.

    In one process DeepSpeed has one size of group for all models.
    """
    saved = tmp_path_factory.mktemp("saved")
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**GPT2, vocab_size=257)).save_pretrained(saved)
    cases = {**SHARED, **HALVES} | {kind: {"model": model, "steps": 3} for kind, model in FAMILIES.items()}
    cases["pretrained"] = {"model": str(saved), "pretrained": True, "steps": 3}
    given = {name: {**BASE, **cases[name]} for name in selected(request) & cases.keys()}
    shared = train_many(**{name: {**changes, "tensor_parallel": 2} for name, changes in given.items()})
    whole = train_many(**{name: {**changes, "compile": False} for name, changes in given.items()})
    return {name: (attempt, whole[name]) for name, attempt in shared.items()}


@pytest.fixture(scope="module")
def four(train_many: TrainMany) -> dict[str, Attempt]:
    cases = {name: {**BASE, "world_size": 4, **changes} for name, changes in FOUR.items()}
    shared = {"tensor_parallel": 2, "checkpoint_every": HALF}
    found = train_many(4, **{name: {**changes, **shared} for name, changes in cases.items()})
    return found | {f"whole {name}": attempt for name, attempt in train_many(4, **cases).items()}


@pytest.mark.parametrize("name", [*SHARED, *FAMILIES, "pretrained"])
def test_two_ranks_that_share_layers_learn_the_same(two: dict[str, tuple[Attempt, Attempt]], name: str) -> None:
    require_same(*two[name])


@pytest.mark.parametrize("name", HALVES)
def test_in_half_precision_they_differ_by_rounding(two: dict[str, tuple[Attempt, Attempt]], name: str) -> None:
    require_same(*two[name], tolerance=5e-3 if name.startswith("bf16") else 5e-4)


@pytest.mark.parametrize("name", FOUR)
def test_four_ranks_in_two_groups(four: dict[str, Attempt], name: str) -> None:
    require_same(four[name], four[f"whole {name}"], tolerance=FOUR_APART[name])


def test_four_ranks_in_one_group(four: dict[str, Attempt], train_many: TrainMany) -> None:
    one = {**BASE, "world_size": 4, "tensor_parallel": 4}
    found = train_many(4, **{name: {**one, **FOUR[name]} for name in ("gpt2 zero2",)})
    for name, attempt in found.items():
        require_same(attempt, four[f"whole {name}"], tolerance=FOUR_APART[name])


def test_a_run_resumes_from_the_parts_of_all_ranks(four: dict[str, Attempt], train_many: TrainMany) -> None:
    """Whatever the stage: its manifest names every file, each once, so that what is damaged is noticed."""
    halves = {name: four[name].checkpoints / f"g0001-step{HALF:08d}" for name in RESUMED}
    base = {**BASE, "world_size": 4, "tensor_parallel": 2}
    resumed = train_many(4, **{name: {**base, **FOUR[name], "resume": half} for name, half in halves.items()})
    for name, attempt in resumed.items():
        require_same(attempt, four[name], HALF, 1e-6)
        saved = checkpoint.verify(halves[name])
        parts = 2 + (4 if FOUR[name]["zero_stage"] else 0)
        assert len([file for file in saved.manifest.files if file.endswith("states.pt")]) == parts


@pytest.mark.parametrize("name", FOUR)
def test_the_weights_of_a_run_are_whole(four: dict[str, Attempt], name: str, data_dir: Path, tmp_path: Path) -> None:
    """In the format of the training they have the loss that it reported; in fp32 they are what the optimizer keeps."""
    kind = FOUR[name].get("precision", "fp32")
    written = {dtype: tmp_path / dtype for dtype in (kind, "fp32")}
    for dtype, folder in written.items():
        folder.mkdir()
        train = json.loads((four[name].dir / "train.json").read_text())
        saved = four[name].checkpoints / f"g0001-step{STEPS:08d}"
        write(WeightsRequest(str(saved), train, str(folder), dtype))
    reported = four[name].values("eval_loss")[STEPS]
    assert held_out_loss(written[kind], "zero-1", data_dir) == pytest.approx(
        reported, abs=1e-6 if kind == "fp32" else 1e-3
    )
    if kind != "fp32":
        half, full = (load_file(folder / "model.safetensors") for folder in written.values())
        assert all((full[key].bfloat16() == half[key]).all() for key in half)
        assert any((full[key] != half[key].float()).any() for key in half)


def test_a_search_for_the_micro_batch_gives_a_group_the_same_tokens(train_many: TrainMany) -> None:
    """DeepSpeed would stop at others."""
    search = {"global_batch": 4, "search": {"share": 4, "seconds": 60.0}}
    searched = train_many(searched={**BASE, "tensor_parallel": 2, **search})["searched"]
    trials = [line for line in searched.lines() if line.get("event") == "trial"]
    assert {trial["tokens"] for trial in trials} == {4 * TINY["seq_len"]}  # of a step of the whole batch
