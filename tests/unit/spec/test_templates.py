"""The published experiments as templates: what they expand to, and what is equal in a comparison."""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.spec import templates
from dscampaign.orchestrator.spec.expand import Run, expand
from dscampaign.orchestrator.spec.load import load_runs, load_spec
from dscampaign.orchestrator.spec.model import Spec

Output = pytest.CaptureFixture[str]


def named(*axes: tuple[str, list[str]]) -> list[str]:
    """The runs of a whole matrix."""
    return ["_".join(values) for values in product(*([f"{name}-{value}" for value in values] for name, values in axes))]


SHARDED = ["zero0", "zero1", "zero2", "zero3", "zero3-offload"]
STAGES = ("zero_stage", ["0", "1", "2", "3"])
POINTS = {
    "loss-verification": named(("zero_stage", ["1", "2", "3"]), ("deepcompile", ["false", "true"])),
    "zero-precision-matrix": named(STAGES, ("precision", ["fp16", "fp32"])),
    "five-strategies": [
        *named(("model", ["gpt2-medium"]), ("strategy", ["ddp", "zero1", "zero2"])),
        *named(("model", ["gpt2-large"]), ("strategy", ["zero3", "zero3-offload", "zero-infinity"])),
    ],
    "five-strategies-next": [
        *("medium-ddp", "medium-zero1", "medium-zero2", "large-zero3", "large-zero3-offload"),
        *("xl-zero3", "xl-zero3-recomputed", "xl-zero3-2nodes"),
    ],
    "gpu-telemetry": ["precision-fp16"],
    "deepspeed-knobs": [
        *("defaults", "no-overlap", "small-buckets", "no-overlap-small-buckets", "scattered-gradients"),
        *("more-prefetch", "more-persistent", "no-nvls"),
    ],
    "llama-sizes": ["7b-4gpus", "13b-1gpu-offload", "70b-8gpus", "70b-8gpus-offload"],
    "zero-and-offload": [
        *named(("model", ["gpt2"]), ("shape", ["4x512", "8x512", "4x1024"]), ("strategy", SHARDED)),
        *named(
            ("model", ["facebook-opt-1.3b"]),
            ("shape", ["4x512"]),
            ("strategy", [*SHARDED, "zero3-offload-full", "zero-infinity"]),
        ),
        *named(
            ("model", ["facebook-opt-1.3b"]),
            ("shape", ["8x512", "4x1024"]),
            ("strategy", [*SHARDED, "zero3-offload-full"]),
        ),
    ],
}
"""The points of each template, as their runs are named."""

ON_A_CPU = {
    "loss-verification": {"deepcompile": "compile"},
    "zero-precision-matrix": {"fp16": "bf16"},
    "five-strategies": {"gpt2": "tiny"},
    "five-strategies-next": {},
    "gpu-telemetry": {"fp16": "bf16"},
    "deepspeed-knobs": {"no-nvls": "two-threads"},
    "llama-sizes": {},
    "zero-and-offload": {
        "facebook-opt-1.3b": "tiny-opt", "gpt2": "tiny-gpt2", "4x512": "4x64", "8x512": "8x64", "4x1024": "4x128",
    },
}  # fmt: skip
"""What is called otherwise at the scale `smoke`, because it is something else."""

NOT_ON_A_CPU = ("zero-infinity", "2nodes")

SEARCH = "tune-deepspeed"
"""The template that has no matrix."""

scales = pytest.mark.parametrize("scale", templates.SCALES)
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


def points_at(name: str, scale: str) -> list[str]:
    """The points of a template as they are named at that scale."""
    if scale == templates.FULL:
        return POINTS[name]
    words = ON_A_CPU[name]
    left = [point for point in POINTS[name] if not point.endswith(NOT_ON_A_CPU)]
    return [re.sub("|".join(map(re.escape, words)) or "$^", lambda match: words[match[0]], point) for point in left]


@scales
@names
def test_a_template_holds_its_points_and_repeats_them(name: str, scale: str) -> None:
    spec, runs = expanded(name, scale)
    assert spec.name == name
    assert [run.name for run in runs if not run.repeat] == points_at(name, scale)
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
