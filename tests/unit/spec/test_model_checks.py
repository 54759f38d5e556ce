"""What is known of a model before a node loads it, from the source of the Transformers that is installed."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dscampaign.orchestrator.errors import Finding, SpecError
from dscampaign.orchestrator.spec import model_checks, transformers_source
from dscampaign.orchestrator.spec.expand import expand
from dscampaign.orchestrator.spec.load import load_spec, runs_of_text
from dscampaign.orchestrator.spec.model import RunConfig, Spec
from dscampaign.orchestrator.spec.validate import remarks

BASE = """
class PreTrainedConfig:
    vocab_size: int = 100
    model_type: ClassVar[str] = ""

    def __post_init__(self, **kwargs):
        self.theta = kwargs.pop("rope_theta", 1.0)
"""
WIDE = """
from ...configuration_utils import PreTrainedConfig

class WideConfig(PreTrainedConfig):
    model_type = "wide"
    attribute_map = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "max_position_embeddings": "n_positions"}
    n_embd: int = 64
    n_head: int = 4
    n_layer: int = 2
    n_inner: int | None = None
    n_positions: int = 1024
    scale: float = 1.0
    mlp_bias: bool = False
"""
GROUPED = """
from ...configuration_utils import PreTrainedConfig

class GroupedVisionConfig(PreTrainedConfig):
    model_type = "grouped_vision"

class GroupedConfig(PreTrainedConfig):
    model_type = "grouped-query"

    def __init__(self, hidden_size=64, num_attention_heads=4, num_key_value_heads=None, num_hidden_layers=2,
                 head_dim=None, **kwargs):
        super().__init__(**kwargs)

class HeadedConfig(GroupedConfig):
    model_type = "headed"
    head_dim: int = 32
"""

MODEL = """
class PreTrainedModel(nn.Module):
    _supports_sdpa: bool = False
    _supports_flash_attn: bool = False
"""
WIDE_MODEL = """
from ...generation import GenerationMixin
from ...modeling_utils import PreTrainedModel

class WidePreTrainedModel(PreTrainedModel):
    _supports_sdpa = True

class A(WidePreTrainedModel, GenerationMixin):
    pass
"""
GROUPED_MODEL = """
from ...modeling_utils import PreTrainedModel

class B(PreTrainedModel):
    pass

class C(GroupedMixin, PreTrainedModel):
    pass
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the forms of Transformers 5 and 4, and a class that inherits."""
    root = tmp_path / "transformers"
    types = (
        'X = [\n("wide", "A"),\n("grouped-query", "B"),\n("headed", "C"),\n("grouped_vision", "D"),\n("painter", "E")]'
    )
    names = '("wide", "A"),\n("grouped-query", "B"), ("headed", "C")'
    causal = f"MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = OrderedDict(\n[{names}]\n)\n"
    files = {
        "configuration_utils.py": BASE,
        "models/wide/configuration_wide.py": WIDE,
        "models/grouped/configuration_grouped.py": GROUPED,
        "modeling_utils.py": MODEL,
        "models/wide/modeling_wide.py": WIDE_MODEL,
        "models/grouped/modeling_grouped.py": GROUPED_MODEL,
        "models/auto/configuration_auto.py": types,
        "models/auto/modeling_auto.py": causal + 'Y = [("painter", "E")]\n',
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(transformers_source, "package_of", lambda _python: root)
    return root


def findings(model: Any, tokenizer: str | None = "bytes", **train: Any) -> list[Finding]:
    config = RunConfig.model_validate({"train": {"model": model, "tokenizer": tokenizer, "seq_len": 16, **train}})
    return list(model_checks.check(config))


@pytest.mark.parametrize(
    ("model", "field", "words", "hint"),
    [
        ({"model_type": "wide", "n_layers": 2}, "n_layers", "no field of wide", '"n_layer"'),
        ({"model_type": "wide", "num_hidden_layers": 2}, "num_hidden_layers", "no field of wide", '"n_layer"'),
        ({"model_type": "wide", "hidden_sise": 64}, "hidden_sise", "no field of wide", '"n_embd"'),
        ({"model_type": "wide", "n_embd": 66}, "n_embd", "n_embd 66 is not divisible by n_head 4", "64 or 68"),
        ({"model_type": "wide", "hidden_size": 66}, "hidden_size", "hidden_size 66 is not div", "64 or 68"),
        ({"model_type": "wide", "n_head": 3}, "n_embd", "not divisible by n_head 3", "63 or 66"),
        ({"model_type": "wide", "n_positions": 8}, "seq_len", "16 is more than the model's n_positions 8", "at most 8"),
        ({"model_type": "wide", "vocab_size": 256}, "vocab_size", "less than the 257 tokens", "leave it out"),
        ({"model_type": "wide", "n_layer": "2"}, "n_layer", "expected a whole number", ""),
        ({"model_type": "wide", "mlp_bias": 1e308}, "mlp_bias", "expected true or false", ""),
        ({"model_type": "wide", "mlp_bias": "false"}, "mlp_bias", "expected true or false", ""),
        ({"model_type": "wide", "n_head": 0}, "n_head", "expected at least 1", ""),
        ({"model_type": "grouped-query", "n_embd": 64}, "n_embd", "no field of grouped-query", '"hidden_size"'),
        ({"model_type": "grouped-query", "hidden_size": 65}, "hidden_size", "not divisible", "64 or 68"),
        ({"model_type": "headed", "num_key_value_heads": 3}, "num_key_value_heads", "4 is not divisible", "equally"),
        ({"model_type": "wid", "n_layer": 2}, "model_type", "has no model type wid", '"wide"'),
        ({"model_type": "painter"}, "model_type", "no causal language model", "llama"),
        ({"n_layer": 2}, "model_type", "model_type is required", "gpt2"),
    ],
)
def test_a_model_that_cannot_be_built(model: dict[str, Any], field: str, words: str, hint: str) -> None:
    (finding,) = findings(model)
    assert finding.places[0][-1] == field
    assert words in finding.message
    assert hint in (finding.hint or "")


@pytest.mark.parametrize(
    "model",
    [
        {"model_type": "wide", "hidden_size": 32, "n_head": 8, "rope_theta": 2.0, "vocab_size": "auto"},
        {"model_type": "wide", "of_a_newer_version": 1, "_name_or_path": "x", "scale": 2, "n_inner": None},
        {"model_type": "headed", "hidden_size": 50, "num_attention_heads": 3},
        {"model_type": "grouped-query", "hidden_size": 50, "num_attention_heads": 3, "head_dim": 16},
    ],
)
def test_a_model_that_can_be_built_passes(model: dict[str, Any]) -> None:
    assert findings(model) == []


@pytest.mark.parametrize(
    ("attention", "kind"),
    [("sdpa", "grouped-query"), ("flash_attention_2", "grouped-query"), ("flash_attention_2", "wide")],
)
def test_attention_that_a_model_does_not_have_is_refused(attention: str, kind: str) -> None:
    (finding,) = findings({"model_type": kind}, attention=attention)
    assert finding.places[0] == ("train", "attention")
    assert finding.message == f"Transformers has no {attention} for {kind}"
    assert "auto" in (finding.hint or "")


@pytest.mark.parametrize(
    ("attention", "kind"),
    [("sdpa", "wide"), ("eager", "grouped-query"), ("auto", "grouped-query"), ("sdpa", "headed")],
)
def test_attention_that_a_model_has_or_may_have_passes(attention: str, kind: str) -> None:
    """`headed` inherits from what is not found, which may say anything."""
    assert findings({"model_type": kind}, attention=attention) == []


def test_what_follows_from_a_misspelt_field_alone_is_not_told(tmp_path: Path) -> None:
    model = {"model_type": "wide", "n_emb": 100, "n_head": 5}
    assert len(findings(model)) == 2
    train = {"model": model, "tokenizer": "bytes", "seq_len": 16, "global_batch": 8, "steps": 1, "dataset": "text"}
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump({"name": "s", "train": train}))
    with pytest.raises(SpecError) as caught:
        expand(load_spec(spec))
    assert [problem.field for problem in caught.value.problems] == ["train.model.n_emb"]


def test_without_transformers_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_source, "package_of", lambda _python: None)
    assert findings({"model_type": "wide", "n_layers": 2, "n_embd": 65}) == []


def test_a_source_of_another_form_says_nothing(package: Path) -> None:
    (package / "models/auto/configuration_auto.py").write_text("")
    (package / "models/auto/modeling_auto.py").write_text("")
    (package / "models/wide/configuration_wide.py").write_text(
        "from .. import Far\nclass W(FarConfig):\n  model_type='wide'\n"
    )
    assert findings({"model_type": "wide", "n_layers": 2}) == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gtp2", "gpt2"),
        ("gpt-2", "gpt2"),
        ("opt-125m", "facebook/opt-125m"),
        ("facebook/otp-125m", "facebook/opt-125m"),
        ("meta-llama/llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("facebook/opt-66b", None),
        ("meta-llama/Llama-3.2-1B-Instruct", None),
        ("distilgpt2", None),
        ("EleutherAI/pythia-70m", None),
        ("gpt2", None),
    ],
)
def test_a_misspelt_name(name: str, meant: str | None) -> None:
    assert model_checks.misspelt_name(name) == meant


def test_a_missing_tokenizer(tmp_path: Path) -> None:
    (finding,) = findings({"model_type": "wide"}, None)
    assert finding.places[0] == ("train", "tokenizer")
    folder = tmp_path / "model"
    folder.mkdir()
    assert "no config.json" in findings(str(folder))[0].message
    (folder / "config.json").write_text("{}")
    assert "no tokenizer" in findings(str(folder), None)[0].message
    assert findings(str(folder), "bytes") == []
    (folder / "tokenizer.json").write_text("{}")
    assert findings(str(folder), None) == []
    assert findings("gpt2", "byts")[0].hint == 'did you mean "bytes"?'


def test_a_section_that_is_not_used() -> None:
    fields = {"name": "x", "command": ["a.py"]}
    local = Spec.model_validate({**fields, "executor": "local", "slurm": {"partition": "a"}})
    assert remarks(local) == ["`slurm:` is not used with `executor: local`"]
    assert remarks(Spec.model_validate({**fields, "slurm": {"partition": "a"}})) == []


def test_keys_that_deepspeed_no_longer_takes_are_remarked_for_a_script_of_ones_own() -> None:
    zero = {"mics_shard_size": 8, "overlap_comm": True}
    given = {"amp": {"enabled": True, "opt_level": "O9"}, "eigenvalue": {"enabled": False}, "zero_optimization": zero}
    fields = {"name": "x", "slurm": {"partition": "a"}, "train": {"steps": 1}, "deepspeed": given}
    keys = ["amp", "eigenvalue", "zero_optimization.mics_shard_size"]
    said = [f"deepspeed.{key} is no longer in DeepSpeed (0.19.8), which stops at this key" for key in keys]
    assert remarks(Spec.model_validate({**fields, "command": ["a.py"]})) == said
    assert remarks(Spec.model_validate({**fields, "command": ["a.py"], "deepspeed": {"scheduler": {}}})) == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("[3.9, 3.10]", 'axis x: 3.10 is a number and reaches the script as 3.1; quote it ("3.10") to keep its text'),
        ("[1.5, 1e5]", 'axis x: 1e5 is a number and reaches the script as 100000.0; quote it ("1e5") to keep its text'),
        ("[{x: 0.50, label: a}]", "axis x: 0.50 is a number and reaches the script as 0.5; "),
        ("[3.14159265358979323846]", "axis x: 3.14159265358979323846 is a number and reaches the script as 3.14159"),
        ("[1e-4, 3.5E-5, 1.0, 5., .5, -2.5, .inf, .nan, 7, true, 3.1.10]", ""),
        ("['3.10', \"1e5\"]", ""),
    ],
)
def test_a_number_that_loses_its_text_on_the_way_to_a_script_is_remarked(
    tmp_path: Path, values: str, said: str
) -> None:
    (tmp_path / "a.py").touch()
    text = f"name: a\ncommand: a.py {{x}}\ntrain: {{steps: 1}}\nmatrix: {{x: {values}, lr: [0.10, 1e3]}}\n"
    spec, _ = runs_of_text(text, tmp_path / "s.yaml")
    assert [remark.startswith(said) for remark in remarks(spec)] == ([True] if said else [])


def test_a_number_too_large_for_a_float_is_no_infinity() -> None:
    """As of an abbreviated commit."""
    text = "name: a\ncommand: a.py {x}\ntrain: {steps: 1}\nmatrix: {x: [12e4567]}\n"
    with pytest.raises(SpecError, match="too large a number"):
        runs_of_text(text, Path("s.yaml"))


@pytest.mark.parametrize(
    ("slurm", "matrix", "said"),
    [
        ({"time": "24:00"}, {}, ['slurm.time "24:00" is 24 minutes for Slurm; 24 hours are "24:00:00"']),
        ({}, {"time": ["12:00", "90"]}, ['slurm.time "12:00" is 12 minutes for Slurm; 12 hours are "12:00:00"']),
        ({"time": "24:00:00"}, {"slurm.time": ["2-12:30", "90"]}, []),
    ],
)
def test_minutes_that_look_like_hours_are_remarked(
    slurm: dict[str, str], matrix: dict[str, list[str]], said: list[str]
) -> None:
    fields = {"name": "x", "command": ["a.py"], "slurm": {"partition": "a", **slurm}, "matrix": matrix}
    assert remarks(Spec.model_validate(fields)) == said


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        ({"seed": [1, 2, 3], "lr": [0.1]}, "axis seed: each seed is compared as a condition of its own; `repeats: 3` "),
        ({"train.seed": [1, 2]}, "axis train.seed: each seed is compared as a condition of its own; `repeats: 2` "),
        ({"random_seed": [1, 2]}, "axis random_seed: "),
        ({"seed": [1]}, ""),
        ({"lr": [1, 2]}, ""),
    ],
)
def test_seeds_as_an_axis_are_better_repeats(matrix: dict[str, list[float]], said: str) -> None:
    found = remarks(Spec.model_validate({"name": "x", "train": {"steps": 1}, "matrix": matrix}))
    assert [remark.startswith(said) for remark in found] == ([True] if said else [])
