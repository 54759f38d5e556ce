"""Ranks that share samples learn what ranks with samples of their own learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dscampaign.tests.integration.trainer.attempts import LLAMA, Attempt, require_same

pytestmark = [pytest.mark.nightly, pytest.mark.training]

STEPS, HALF = 8, 4
BASE: dict[str, Any] = {"steps": STEPS, "eval_batches": 2}
LLAMA_KV2: dict[str, Any] = {**LLAMA, "num_key_value_heads": 2}
SHARED: dict[str, dict[str, Any]] = {
    **{f"zero{stage}": {"zero_stage": stage} for stage in range(3)},
    "zero3": {"zero_stage": 3, "checkpoint_every": HALF},
    "ddp": {"engine": "ddp", "zero_stage": 0},
    "fsdp2": {"engine": "fsdp2", "zero_stage": 0},
    "accumulated": {"micro_batch": 1},
    "fused-loss": {"fused_loss": True},
    "recomputed-zero3": {"activation_checkpointing": True, "zero_stage": 3},
    "offload": {"zero_stage": 2, "offload": "optimizer"},
    "compiled": {"compile": True},
}
"""Two ranks to a sample."""
FAMILIES: dict[str, dict[str, Any]] = {
    kind: {**LLAMA_KV2, "model_type": kind, "pad_token_id": None}
    for kind in ("llama", "olmo2", "qwen2", "qwen3", "smollm3")
} | {
    "gpt_neox": {**LLAMA, "model_type": "gpt_neox"},
    "opt": {**LLAMA, "model_type": "opt", "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
}


@pytest.fixture(scope="module")
def trained(train_many: Callable[..., dict[str, Attempt]]) -> dict[str, Attempt]:
    """Attempts of two ranks, each by its name; what is compared with, by `whole` before it."""
    cases: dict[str, dict[str, Any]] = {"whole": {}} | {
        name: {"sequence_parallel": 2, **changes} for name, changes in SHARED.items()
    }
    for kind, model in FAMILIES.items():
        cases[f"whole {kind}"] = {"model": model, "steps": 3}
        cases[kind] = {**cases[f"whole {kind}"], "sequence_parallel": 2}
    return train_many(**{name: {**BASE, **changes} for name, changes in cases.items()})


@pytest.mark.parametrize("name", SHARED)
def test_two_ranks_that_share_samples_learn_the_same(trained: dict[str, Attempt], name: str) -> None:
    require_same(trained[name], trained["whole"], tolerance=2e-5)


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_that_is_served_learns_the_same(trained: dict[str, Attempt], kind: str) -> None:
    require_same(trained[kind], trained[f"whole {kind}"], tolerance=2e-5)


def test_a_run_resumes_also_with_samples_divided_otherwise(
    trained: dict[str, Attempt], train_many: Callable[..., dict[str, Attempt]]
) -> None:
    """ZeRO's parts are of all ranks, whichever of them share samples."""
    halfway = trained["zero3"].checkpoints / f"g0001-step{HALF:08d}"
    three = {**BASE, "zero_stage": 3, "resume": halfway}
    resumed = train_many(shared={**three, "sequence_parallel": 2}, whole=three)
    require_same(resumed["shared"], trained["zero3"], HALF, 1e-6)
    require_same(resumed["whole"], trained["whole"], HALF, 2e-5)


def test_four_ranks_in_two_groups_and_in_one(train_many: Callable[..., dict[str, Attempt]]) -> None:
    model = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4}
    base = {**BASE, "world_size": 4, "model": model}
    found = train_many(4, whole=base, two={**base, "sequence_parallel": 2}, four={**base, "sequence_parallel": 4})
    require_same(found["two"], found["whole"], tolerance=2e-5)
    require_same(found["four"], found["whole"], tolerance=2e-5)
