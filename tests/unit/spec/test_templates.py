"""The published experiments as templates: what they expand to, and what is equal in a comparison."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.spec import templates
from dscampaign.orchestrator.spec.expand import Run, expand
from dscampaign.orchestrator.spec.model import Spec
from dscampaign.tests.support.spec_files import load_runs, load_spec

Output = pytest.CaptureFixture[str]

POINTS = {
    "loss-verification": 6, "zero-precision-matrix": 8, "five-strategies": 6, "five-strategies-next": 8,
    "gpu-telemetry": 1, "deepspeed-knobs": 8, "llama-sizes": 4, "zero-and-offload": 34,
}  # fmt: skip
"""The number of points of each template at full scale."""

SEARCH = "tune-deepspeed"
"""The template that has no matrix."""

scales = pytest.mark.parametrize("scale", [templates.FULL, templates.SMOKE])
names = pytest.mark.parametrize("name", POINTS)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for variable in ("CAMPAIGN_DIR", "CAMPAIGN_STORE"):
        monkeypatch.delenv(variable, raising=False)


def started(name: str, scale: str) -> tuple[Spec, tuple[Run, ...]]:
    """The spec that `init` writes, and its runs."""
    assert main(["init", "--from", name, "--scale", scale]) == 0
    spec = load_spec(Path("campaign.yaml"))
    return spec, expand(spec)


expanded = cache(started)
"""The same for tests that only read it."""


@scales
@names
def test_a_template_holds_its_points_and_repeats_them(name: str, scale: str) -> None:
    spec, runs = expanded(name, scale)
    points = sum(not run.repeat for run in runs)
    assert spec.name == name
    assert points == POINTS[name] or (scale == templates.SMOKE and 0 < points < POINTS[name])
    assert spec.repeats == (1 if (name, scale) == ("zero-and-offload", templates.SMOKE) else 3)


@scales
@names
def test_what_is_compared_sees_the_same_tokens_in_a_step(name: str, scale: str) -> None:
    _, runs = expanded(name, scale)
    assert len({(run.global_batch or 0) * run.config.train.seq_len for run in runs}) == 1
    for run in runs:
        assert run.global_batch == (run.micro_batch or 0) * (run.accumulation or 0) * run.world_size
    trained = {(r.config.train.steps, r.config.train.epochs, r.config.train.lr) for r in runs}
    assert len(trained) == 1


@names
def test_the_plan_at_full_scale_needs_no_gpu_and_no_network(name: str, capsys: Output) -> None:
    spec, runs = started(name, templates.FULL)
    assert spec.executor == "slurm"
    capsys.readouterr()
    assert main(["validate", "campaign.yaml"]) == 0
    assert main(["plan", "campaign.yaml"]) == 0
    out = capsys.readouterr().out
    assert f"Plan: {len(runs)} to submit, 0 kept, 0 to cancel" in out
    assert "warning" not in out


@names
def test_at_the_scale_of_a_laptop_nothing_is_needed_but_its_cpu(name: str, tmp_path: Path) -> None:
    spec, runs = started(name, templates.SMOKE)
    assert (spec.executor, spec.env) == ("local", {"DS_ACCELERATOR": "cpu"})
    for run in runs:
        train = run.config.train
        assert run.world_size <= 2
        assert isinstance(train.model, dict)
        assert (train.tokenizer, train.pretrained, train.deepcompile) == ("bytes", False, False)
        assert train.dataset is not None
        assert train.dataset.path == str(tmp_path / templates.TEXT)
        assert train.precision in ("bf16", "fp32")


@pytest.mark.parametrize(
    ("name", "change", "points"),
    [
        ("loss-verification", "matrix.include=[{label: z3, zero_stage: 3, compile: true}]", 6 + 1),
        ("zero-precision-matrix", "matrix.precision=[fp16, bf16, tf32, fp32]", 4 * 4),
        ("zero-precision-matrix", "matrix.seq_len=[128, 512, 1024]", 4 * 2 * 3),
        ("zero-precision-matrix", "matrix.batch=[{label: 8, global_batch: 8, micro_batch: 8}]", 4 * 2),
        ("five-strategies", "matrix.exclude=", 2 * 6),
        ("gpu-telemetry", "matrix.compile=[false, true]", 2),
        (
            "zero-and-offload",
            "matrix.strategy=[ddp, zero1-offload, zero2-offload, zero3-offload-full, zero-infinity]",
            3 * 3 + 4 * 3 + 1,
        ),
    ],
)
def test_what_a_template_offers_in_comments_is_valid(name: str, change: str, points: int) -> None:
    started(name, templates.FULL)
    assert len([run for run in expand(load_spec(Path("campaign.yaml"), [change])) if not run.repeat]) == points


@scales
def test_the_search_has_a_first_trial(scale: str) -> None:
    templates.write(templates.find(SEARCH), scale, Path("campaign.yaml"))
    spec, (trial,) = load_runs(Path("campaign.yaml"))
    assert spec.search
    assert set(trial.params) == {key.rpartition(".")[2] for key in spec.search.parameters}
    assert trial.config.deepspeed["zero_optimization"]["reduce_bucket_size"] == trial.params["reduce_bucket_size"]


# -- init --------------------------------------------------------------------------------------------------------------


def test_the_list_has_a_line_for_each_template(capsys: Output) -> None:
    assert main(["init", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == sorted([*POINTS, "starter", "local", SEARCH])
    assert {line.split()[0] for line in lines if line.split()[1] == "yes"} == {*POINTS, SEARCH}
    assert not Path("campaign.yaml").exists()
