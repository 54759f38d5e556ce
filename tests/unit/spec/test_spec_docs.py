"""What users read is what the program does: the reference, the templates and the examples."""

from importlib.resources import files
from pathlib import Path

import pytest
from pydantic import BaseModel

import dscampaign
from dscampaign.orchestrator.spec.expand import expand
from dscampaign.orchestrator.spec.model import DatasetConfig, LocalConfig, Spec, TrainConfig
from dscampaign.orchestrator.spec.sections import RetryConfig
from dscampaign.orchestrator.spec.slurm_section import SlurmConfig
from dscampaign.tests.support.spec_files import load_spec

ROOT = Path(dscampaign.__file__).parent
TEMPLATES = Path(str(files("dscampaign.templates")))


def test_every_field_is_documented() -> None:
    models: list[type[BaseModel]] = [Spec, TrainConfig, DatasetConfig, SlurmConfig, LocalConfig, RetryConfig]
    bare = [f"{m.__name__}.{name}" for m in models for name, field in m.model_fields.items() if not field.description]
    assert not bare


def test_what_the_starter_has_commented_out_loads_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "someone")
    (tmp_path / "train.py").write_text("")
    lines = (TEMPLATES / "starter.yaml").read_text().splitlines()
    fields = [line.replace("# ", "", 1) if _is_field(line) else line for line in lines]
    spec = tmp_path / "spec.yaml"
    spec.write_text("\n".join(fields))
    assert len(expand(load_spec(spec))) == 3 * (4 * 2 - 1 + 1)


def test_the_quickstart_holds_what_it_says() -> None:
    runs = {run.name: run for run in expand(load_spec(ROOT / "examples" / "quickstart.yaml"))}
    assert list(runs) == ["zero_stage-0", "zero_stage-1", "zero_stage-2", "zero_stage-3", "too-big"]
    assert {run.world_size for run in runs.values()} == {2}
    assert runs["too-big"].micro_batch == runs["too-big"].global_batch // 2  # type: ignore[operator]


def _is_field(line: str) -> bool:
    """Whether a comment of the starter is a field that is commented out."""
    text = line.strip().removeprefix("# ").lstrip()
    return line.strip().startswith("# ") and text != "store:" and (text[:2] == "- " or text.split(" ")[0].endswith(":"))
