"""Which modules ZeRO 3 gathers at once and how far ahead, and what is compiled of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dscampaign.tests.integration.trainer.attempts import ON_CPU
from dscampaign.tests.integration.trainer.conftest import Launch

pytestmark = pytest.mark.training

MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 3, "n_embd": 32, "n_head": 2},
    "llama": {
        "num_hidden_layers": 3,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    },
    "opt": {
        "num_hidden_layers": 3,
        "hidden_size": 32,
        "ffn_dim": 64,
        "num_attention_heads": 2,
        "word_embed_proj_dim": 32,
    },
}


def gathered(kind: str, zero: dict[str, Any]) -> tuple[int, list[str]]:
    """How many blocks a model of this type has marked, and the names of all modules that are marked."""
    from deepspeed.utils import z3_leaf_module
    from transformers import AutoConfig, AutoModelForCausalLM

    from dscampaign.jobs.trainer.engine import gather_whole_blocks

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, vocab_size=64, **MODELS[kind]))
    number = gather_whole_blocks(model, {"zero_optimization": zero})
    return number, [name for name, module in model.named_modules() if z3_leaf_module(module)]


@pytest.mark.parametrize("kind", MODELS)
def test_each_block_is_gathered_at_once(kind: str) -> None:
    number, names = gathered(kind, {"stage": 3})
    assert number == len(names) == 3
    assert [name.rpartition(".")[2] for name in names] == ["0", "1", "2"]


@pytest.mark.parametrize(
    "zero",
    [
        {"stage": 2},
        {"stage": 3, "leaf_module": {"classes": []}},
        {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/swap"}},
    ],
    ids=["parameters are whole anyway", "the spec says otherwise", "each parameter needs a buffer"],
)
def test_where_gathering_whole_blocks_does_not_help_none_is_marked(zero: dict[str, Any]) -> None:
    assert gathered("gpt2", zero) == (0, [])


@pytest.mark.nightly
def test_all_blocks_share_what_is_compiled_for_one(launch: Launch, tmp_path: Path) -> None:
    """One graph for the blocks and one for the loss."""
    script = str(Path(__file__).with_name("compiled_blocks.py"))
    code, output = launch(script, str(tmp_path / "found.json"), env=ON_CPU).finish()
    assert code == 0, output
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["graphs"] == 2
    assert found["compiled"] == pytest.approx(found["eager"], abs=1e-6)


@pytest.mark.parametrize(
    ("zero", "ahead"),
    [
        ({"stage": 3}, 12 * 4096**2 + 13 * 4096),
        ({"stage": 3, "stage3_prefetch_bucket_size": 7}, 7),
        ({"stage": 3, "prefetch_bucket_size": 7}, None),
        ({"stage": 2}, None),
    ],
    ids=["the largest block", "as the spec says", "by its other name", "nothing is gathered"],
)
def test_a_whole_block_is_gathered_ahead(zero: dict[str, Any], ahead: int | None) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    from dscampaign.jobs.trainer.engine import gather_whole_blocks, with_a_block_ahead

    with torch.device("meta"):
        shape = {"n_layer": 2, "n_embd": 4096, "n_head": 2}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", vocab_size=64, **shape))
    given = {"zero_optimization": zero, "steps_per_print": 1}
    gather_whole_blocks(model, given)
    found = with_a_block_ahead(given, model)
    assert found["zero_optimization"].get("stage3_prefetch_bucket_size") == ahead
    assert found["steps_per_print"] == 1


def test_small_blocks_are_gathered_as_far_ahead_as_deepspeed_does() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    from dscampaign.jobs.trainer.engine import DEFAULT_AHEAD, gather_whole_blocks, with_a_block_ahead

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", vocab_size=64, **MODELS["gpt2"]))
    given = {"zero_optimization": {"stage": 3}}
    gather_whole_blocks(model, given)
    assert with_a_block_ahead(given, model)["zero_optimization"]["stage3_prefetch_bucket_size"] == DEFAULT_AHEAD
