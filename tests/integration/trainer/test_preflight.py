"""What DeepSpeed and Transformers report of a spec's options, by place, and that they are asked once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dscampaign.jobs.trainer.preflight import deepspeed_findings, model_findings
from dscampaign.orchestrator.doctor.option_checks import OptionChecks
from dscampaign.orchestrator.errors import Problem, SpecError
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.tests.support.spec_files import load_runs

SPEC = """\
name: s
executor: local
train:
  model: {model_type: gpt2, n_embd: 64, n_layers: 2}
  tokenizer: bytes
  dataset: wikitext
  global_batch: 8
  steps: 4
deepspeed:
  gradient_cliping: 1
  zero_optimization:
    overlap_com: true
matrix:
  deepspeed.zero_optimization.allgather_bucket_size: [5e8, x]
"""


def problems(spec: Path, told: list[str]) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        load_runs(spec, check_options=OptionChecks(told.append))
    return caught.value.problems


def test_a_mistake_has_its_line_and_libraries_are_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    spec, told = tmp_path / "spec.yaml", list[str]()
    spec.write_text(SPEC)
    first = problems(spec, told)
    found = {(one.line, one.field): (one.message, one.hint) for one in first}
    axis = "matrix.deepspeed.zero_optimization.allgather_bucket_size[1]"
    message, hint = found.pop((10, "deepspeed.gradient_cliping"))
    assert message.startswith("is not read by DeepSpeed")
    assert hint == 'did you mean "gradient_clipping"?'
    assert found == {
        (4, "train.model.n_layers"): (
            "gpt2 of Transformers has no such field, and would ignore it",
            'did you mean "n_layer"?',
        ),
        (12, "deepspeed.zero_optimization.overlap_com"): ("DeepSpeed: Extra inputs are not permitted", None),
        (14, axis): ("DeepSpeed: Input should be a valid integer, unable to parse string as an integer", None),
    }
    (kept,) = (tmp_path / "cache" / "dscampaign").iterdir()
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert problems(spec, told) == first
    assert len(told) == 1


def given_to(deepspeed: dict[str, Any], train: dict[str, Any] | None = None) -> list[tuple[str, ...]]:
    """The message of each finding, and its places."""
    config = RunConfig.model_validate({"train": train or {"zero_stage": 1}, "deepspeed": deepspeed})
    findings = deepspeed_findings(config.rendered_deepspeed(), config.deepspeed)
    return [(f["message"], *(".".join(place) for place in f["places"])) for f in findings]


@pytest.mark.parametrize(
    ("deepspeed", "places", "message"),
    [
        (
            {"zero_optimization": {"offload_param": {"devic": "cpu"}}},
            ["zero_optimization.offload_param.devic"],
            "Extra",
        ),
        ({"zero_optimization": {"sub_group_size": -5}}, ["zero_optimization.sub_group_size"], "greater than or equal"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, ["fp16.enabled", "bf16.enabled"], "simultaneously"),
        ({"bf16": {"bf16_optimizer_states": True}}, ["bf16.bf16_optimizer_states"], "requires bf16_master_weights"),
        ({"communication_data_type": "bf17"}, ["communication_data_type"], "Supported data types"),
        ({"flops_profiler": 3}, ["flops_profiler"], "fails with AttributeError"),
        ({"elasticity": {}}, ["elasticity"], "has been removed"),
        ({"checkpoint": {"tag_validation": "maybe"}}, ["checkpoint.tag_validation"], "expecting one of"),
        ({"flops_profiler": {"profile_steps": 1}}, ["flops_profiler.profile_steps"], "is not read"),
        ({"overlap_comm": True}, ["overlap_comm"], "is not read"),
        ({"optimizer": {"params": {"bettas": [0.9, 0.99]}}}, ["optimizer.params.bettas"], "is not a parameter"),
    ],
)
def test_deepspeed_reports_a_mistake_where_it_stands(
    deepspeed: dict[str, Any], places: list[str], message: str
) -> None:
    (found,) = given_to(deepspeed)
    assert message in found[0]
    assert sorted(found[1:]) == sorted(places)


@pytest.mark.parametrize(
    "deepspeed",
    [
        {"zero_optimization": {"allgather_bucket_size": "500", "overlap_comm": 1, "leaf_module": {"classes": []}}},
        {"optimizer": {"type": "Adafactor", "params": {"eps": [None, 1e-3]}}},
        {"optimizer": {"type": "Lion", "params": {"weight_decay": 0.1}}, "log_level": "info"},
        {"optimizer": {"params": {"betas": [0.9, 0.99], "torch_adam": False, "bias_correction": True}}},
        {"data_types": {"keep_in_fp32_modules": "auto"}, "sequence_parallel_size": 1, "vocabulary_size": 50304},
        {
            "communication_data_type": None,
            "steps_per_print": 1e3,
            "scheduler": {"type": "StepLR", "params": {"step_size": 3}},
        },
        {"tensorboard": {"enabled": False}, "comms_logger": {"enabled": True}, "aio": {"block_size": 1 << 20}},
    ],
)
def test_what_deepspeed_takes_passes(deepspeed: dict[str, Any]) -> None:
    assert given_to(deepspeed) == []


@pytest.mark.parametrize(
    ("model", "attention", "places", "message"),
    [
        ({"model_type": "gtp2"}, "auto", ["model.model_type"], "does not have the model type gtp2"),
        ({"model_type": "vit"}, "auto", ["model.model_type"], "no causal language model for vit"),
        ({"model_type": "gpt2", "n_embd": 100, "n_head": 3}, "auto", ["model.n_embd", "model.n_head"], "divisible"),
        ({"model_type": "gpt2", "n_layer": "2"}, "auto", ["model.n_layer"], "expected int"),
        ({"model_type": "bloom"}, "sdpa", ["attention"], "BloomForCausalLM does not support"),
        ({"model_type": "gpt2", "n_positions": 8}, "auto", ["seq_len"], "16 is more than the 8 positions"),
    ],
)
def test_transformers_reports_a_mistake_where_it_stands(
    model: dict[str, Any], attention: str, places: list[str], message: str
) -> None:
    (found,) = model_findings(model, 16, attention)
    assert message in found["message"]
    assert [".".join(place) for place in found["places"]] == places


def test_a_model_that_can_be_built_passes() -> None:
    small = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    assert model_findings({**small, "vocab_size": "auto", "of_a_newer_version": 1}, 16, "sdpa") == []
