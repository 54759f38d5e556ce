"""Mistakes in a model that are known without Transformers, and remarks on a spec."""

from pathlib import Path
from typing import Any

import pytest

from dscampaign.orchestrator.errors import Finding
from dscampaign.orchestrator.spec.model import RunConfig, Spec
from dscampaign.orchestrator.spec.validate import check, remarks


def findings(model: Any, tokenizer: str | None = "bytes", **train: Any) -> list[Finding]:
    config = RunConfig.model_validate({"train": {"model": model, "tokenizer": tokenizer, "seq_len": 16, **train}})
    return [f for f in check(config, 8) if f.places[0][1] in ("model", "tokenizer")]


def test_a_model_has_a_type_and_a_vocabulary_for_its_tokens() -> None:
    (finding,) = findings({"n_layer": 2})
    assert (finding.places[0][-1], finding.message) == ("model_type", "model_type is required")
    (finding,) = findings({"model_type": "gpt2", "vocab_size": 256})
    assert "less than the 257 tokens" in finding.message
    assert findings({"model_type": "gpt2", "vocab_size": "auto"}) == []


def test_a_missing_tokenizer_or_configuration(tmp_path: Path) -> None:
    (finding,) = findings({"model_type": "gpt2"}, None)
    assert finding.places[0] == ("train", "tokenizer")
    folder = tmp_path / "model"
    folder.mkdir()
    assert "no config.json" in findings(str(folder))[0].message
    (folder / "config.json").write_text("{}")
    assert findings(str(folder), None) == []


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        ({"seed": [1, 2, 3], "lr": [0.1]}, "axis seed: each seed is compared as a condition of its own; for repeats"),
        ({"train.seed": [1, 2]}, "axis train.seed: each seed is compared as a condition of its own; for repeats"),
        ({"random_seed": [1, 2]}, "axis random_seed: "),
        ({"array": [{"seed": s, "lr": r} for s in (1, 2) for r in (3, 4)]}, "axis array: each seed is compared"),
        ({"both": [{"train.seed": 1, "lr": 3}, {"train.seed": 2, "lr": 4}]}, "axis both: each seed is compared"),
        ({"array": [{"seed": 1, "lr": 3}, {"seed": 1, "lr": 4}]}, ""),
        ({"seed": [1]}, ""),
        ({"lr": [1, 2]}, ""),
    ],
)
def test_seeds_as_an_axis_are_better_repeats(matrix: dict[str, list[float]], said: str) -> None:
    found = remarks(Spec.model_validate({"name": "x", "train": {"steps": 1}, "matrix": matrix}))
    assert [remark.startswith(said) for remark in found] == ([True] if said else [])
