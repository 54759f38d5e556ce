"""Named models without a hub, and a padded vocabulary that nothing can tell from an unpadded one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dscampaign.jobs.shared import model_shapes
from dscampaign.jobs.trainer import model as models
from dscampaign.jobs.trainer import tokens
from dscampaign.jobs.trainer.data import Data, Samples
from dscampaign.jobs.trainer.model import ModelFacts, NextTokenLoss, build_model, parameter_groups
from dscampaign.orchestrator.memory.parameter_count import count_of_shape
from dscampaign.tests.integration.trainer.attempts import LLAMA, TINY, train_config
from dscampaign.tests.integration.trainer.conftest import in_lanes

NOTHING = Samples(np.zeros(0, dtype=np.uint16), 32)
VOCABULARY = 257
OPT = {"model_type": "opt", "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
NARROW_OPT = {**OPT, "word_embed_proj_dim": 16, "do_layer_norm_before": False}
TIED_LLAMA = {**LLAMA, "tie_word_embeddings": True}
BATCHES = torch.randint(VOCABULARY, (4, 2, 17), generator=torch.Generator().manual_seed(0))
MODELS = {"gpt2": TINY["model"], "opt": OPT, "narrow-opt": NARROW_OPT, "llama": LLAMA, "tied-llama": TIED_LLAMA}


@pytest.fixture(params=list(MODELS.values()), ids=list(MODELS))
def model(request: pytest.FixtureRequest) -> dict[str, Any]:
    fields: dict[str, Any] = request.param
    return fields


def build(model: Any, **changes: Any) -> tuple[NextTokenLoss, ModelFacts]:
    config = train_config(model=model, **changes)
    return build_model(config, Data(NOTHING, NOTHING, VOCABULARY, VOCABULARY - 1), {})


def unpadded(model: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[NextTokenLoss, ModelFacts]:
    with monkeypatch.context() as patch:
        patch.setattr(models, "VOCAB_MULTIPLE", 1)
        return build(model)


def losses(model: NextTokenLoss, batches: torch.Tensor = BATCHES) -> list[torch.Tensor]:
    """Losses of a few steps, with all that the trainer's own steps do to the weights."""
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=1e-2, weight_decay=0.1)
    found = []
    for batch in batches:
        loss = model(batch[:, :-1], batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(loss.detach())
    return found


def test_padding_changes_neither_weights_nor_losses(model: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    padded, bare = build(model)[0], unpadded(model, monkeypatch)[0]
    assert padded.model.get_input_embeddings().weight.shape[0] == 384
    assert bare.model.get_input_embeddings().weight.shape[0] == VOCABULARY
    names = dict(bare.named_parameters())
    for name, weights in padded.named_parameters():
        assert torch.equal(weights[: len(names[name])], names[name]), name
    torch.testing.assert_close(losses(padded), losses(bare))


def test_padding_is_not_counted(model: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    facts = build(model)[1]
    assert facts == unpadded(model, monkeypatch)[1]
    assert facts.vocab_size == VOCABULARY
    assert facts.parameters == count_of_shape({**model, "vocab_size": VOCABULARY})


def test_padding_keeps_tied_weights_tied(model: dict[str, Any]) -> None:
    inner = build(model)[0].model
    tied = inner.get_output_embeddings().weight is inner.get_input_embeddings().weight
    assert tied == inner.config.tie_word_embeddings


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A table with one small model, where nothing can be had from a hub."""
    monkeypatch.setattr(model_shapes, "SHAPES", {"small": {**TINY["model"], "vocab_size": 300}})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # it read the environment when it was loaded
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("named")
def test_a_named_model_needs_no_hub() -> None:
    built, facts = build("small")
    assert facts.vocab_size == 300
    assert facts.parameters == count_of_shape(model_shapes.SHAPES["small"])
    assert built.model.config.eos_token_id == VOCABULARY - 1
    assert built.model.config.attn_pdrop == 0.0


@pytest.mark.usefixtures("named")
def test_a_folder_wins_over_a_name(tmp_path: Path) -> None:
    build({**TINY["model"], "n_layer": 1, "vocab_size": 260})[0].model.config.save_pretrained(tmp_path / "small")
    assert build("small")[1].layers == 1


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize(("name", "pretrained"), [("small", True), ("unheard-of", False)])
def test_published_weights_and_other_names_come_from_the_hub(name: str, pretrained: bool) -> None:
    with pytest.raises(OSError, match=r"huggingface\.co"):
        build(name, pretrained=pretrained)


@pytest.mark.usefixtures("named")
def test_published_weights_are_not_padded(tmp_path: Path) -> None:
    saved = build({**TINY["model"], "vocab_size": 384})[0].model
    saved.resize_token_embeddings(260)
    saved.save_pretrained(tmp_path / "saved")
    loaded, facts = build(str(tmp_path / "saved"), pretrained=True)
    assert torch.equal(loaded.model.get_input_embeddings().weight, saved.get_input_embeddings().weight)
    assert facts.vocab_size == 260


@pytest.mark.usefixtures("named")
def test_a_tokenizer_that_is_nowhere_says_what_to_name() -> None:
    with pytest.raises(OSError, match=r"train\.tokenizer: no tokenizer someone/unheard-of on this node: name a folder"):
        tokens.load_tokenizer("someone/unheard-of")


SMALL: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2},
    "opt": {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    "llama": {**LLAMA, "num_key_value_heads": 2},
}


@pytest.mark.parametrize(
    "name", in_lanes(model_shapes.SHAPES, {"gpt2", "facebook/opt-350m", "meta-llama/Llama-3.2-1B"})
)
def test_every_named_model_trains(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with fewer and narrower layers, and all else that makes it what it is."""
    shape = model_shapes.SHAPES[name]
    narrow = {"word_embed_proj_dim": 16} if "word_embed_proj_dim" in shape else {}
    small = {**shape, **SMALL[shape["model_type"]], **narrow, "vocab_size": 300}
    monkeypatch.setattr(model_shapes, "SHAPES", {name: small})
    built, facts = build(name)
    assert facts.parameters == count_of_shape(small)
    first, *_, last = losses(built, BATCHES[:1].repeat(6, 1, 1))
    assert torch.isfinite(first)
    assert last < first
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in built.parameters() if p.dim() > 1)
