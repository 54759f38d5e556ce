"""Mistakes in a model that are known without Transformers."""

from pathlib import Path
from typing import Any

from dscampaign.orchestrator.errors import Finding
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.orchestrator.spec.validate import check


def findings(model: Any, tokenizer: str | None = "bytes", **train: Any) -> list[Finding]:
    config = RunConfig.model_validate({"train": {"model": model, "tokenizer": tokenizer, "seq_len": 16, **train}})
    return [f for f in check(config, 8) if f.places[0][1] in ("model", "tokenizer")]


def test_a_model_has_a_type() -> None:
    (finding,) = findings({"n_layer": 2})
    assert (finding.places[0][-1], finding.message) == ("model_type", "model_type is required")


def test_a_missing_tokenizer_or_configuration(tmp_path: Path) -> None:
    (finding,) = findings({"model_type": "gpt2"}, None)
    assert finding.places[0] == ("train", "tokenizer")
    folder = tmp_path / "model"
    folder.mkdir()
    assert "not a folder with a config.json" in findings(str(folder))[0].message
    (folder / "config.json").write_text("{}")
    assert findings(str(folder), None) == []
