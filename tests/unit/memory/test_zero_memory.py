"""States of a model: the published sizes, what was measured on a GPU, and what a plan says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.memory.zero_memory import (
    GB,
    GIB,
    ModelNeeds,
    Offload,
    Sizes,
    gpu_memory_gb,
    model_states,
    needs_of,
    states_of,
)
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.orchestrator.spec.slurm_section import SlurmConfig
from dscampaign.tests.support import REPOSITORY

Output = pytest.CaptureFixture[str]

BILLION = 10**9
OFFLOADS: tuple[Offload, ...] = ("none", "optimizer", "full", "nvme")
NAME = "meta-llama/Llama-2-7b-hf"


def config(slurm: dict[str, Any] | None = None, deepspeed: dict[str, Any] | None = None, **train: Any) -> RunConfig:
    given = {"model": NAME, "dataset": "d", "global_batch": 64, "steps": 10, **train}
    return RunConfig.model_validate({"slurm": slurm or {}, "train": given, "deepspeed": deepspeed or {}})


@pytest.mark.parametrize(("stage", "expected_gb"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_half_precision_is_as_the_paper_has_it(stage: int, expected_gb: float) -> None:
    """Figure 1 of the paper: 7.5 billion parameters on 64 GPUs."""
    states = model_states(75 * BILLION // 10, precision="bf16", zero_stage=stage, ranks=64, buffer=0)
    assert states.gpu_gb == pytest.approx(expected_gb, abs=0.05)
    assert states.host_gb == states.disk_gb == 0.0


def test_the_arithmetic_meets_what_a_gpu_was_measured_to_need() -> None:
    """benchmarks/results/oom-h200.json: GPT-2 with 50,304 rows, bf16, ZeRO 1 on one GPU, before its first sample."""
    parameters = 124_439_808 + 47 * 768
    measured = json.loads((REPOSITORY / "benchmarks/results/oom-h200.json").read_text())
    [after_init_gb] = {a["after_init_gb"] for run in measured["repeats"]["runs"] for a in run["attempts"]}
    assert model_states(parameters, precision="bf16", zero_stage=1, ranks=1).gpu_gb == pytest.approx(
        after_init_gb, rel=1e-3
    )


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize(("stage", "bytes_each"), [(0, 16.0), (1, 8 + 12 / 4), (2, 4 + 16 / 4), (3, 20 / 4)])
def test_full_precision_has_a_second_copy_of_the_weights_under_zero(
    precision: str, stage: int, bytes_each: float
) -> None:
    states = model_states(BILLION, precision=precision, zero_stage=stage, ranks=4, buffer=0)
    assert states.gpu_gb == pytest.approx(bytes_each)


def test_ddp_has_everything_in_fp32_on_every_rank() -> None:
    states = model_states(BILLION, precision="bf16", zero_stage=3, ranks=8, engine="ddp", offload="full")
    assert (states.weights_gb, states.gradients_gb, states.optimizer_gb, states.buffers_gb) == (4.0, 4.0, 8.0, 0.0)
    assert states.host_gb == 0.0


@pytest.mark.parametrize(
    ("stage", "offload", "gpu_gb", "host_gb", "disk_gb"),
    [
        (0, "optimizer", 16.0, 0.0, 0.0),  # without ZeRO nothing can leave
        (1, "optimizer", 4.0, 8.0, 0.0),
        (2, "optimizer", 2.0, 8.0, 0.0),
        (3, "optimizer", 0.25, 8.0, 0.0),
        (3, "full", 0.0, 9.0, 0.0),
        (3, "nvme", 0.0, 0.0, 9.0),
        (2, "full", 2.0, 8.0, 0.0),  # weights leave only where they are divided
    ],
)
def test_offloaded_states_are_on_the_nodes(
    stage: int, offload: Offload, gpu_gb: float, host_gb: float, disk_gb: float
) -> None:
    """Two nodes of four ranks: DeepSpeed's own estimate is 16 and 18 bytes a parameter over all nodes."""
    sizes: dict[str, Any] = {"ranks": 8, "ranks_per_node": 4, "buffer": 0}
    states = model_states(BILLION, precision="bf16", zero_stage=stage, offload=offload, **sizes)
    assert (states.gpu_gb, states.host_gb, states.disk_gb) == pytest.approx((gpu_gb, host_gb, disk_gb))


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_a_higher_stage_and_more_offload_never_take_more(precision: str) -> None:
    of_stage = [model_states(BILLION, precision=precision, zero_stage=s, ranks=4, buffer=0).gpu_gb for s in (1, 2, 3)]
    assert of_stage == sorted(of_stage, reverse=True)
    of_offload = [
        model_states(BILLION, precision=precision, zero_stage=3, ranks=4, offload=offload).gpu_gb
        for offload in OFFLOADS
    ]
    assert of_offload == sorted(of_offload, reverse=True)


# -- of a run --------------------------------------------------------------------------------------------------


def test_a_run_is_counted_as_its_deepspeed_configuration_says() -> None:
    offload = {"device": "cpu"}
    zero = {"stage": 3, "offload_optimizer": offload, "offload_param": offload, "reduce_bucket_size": 1000}
    states = states_of(config(deepspeed={"zero_optimization": zero}), BILLION, Sizes(8, 8))
    assert (states.gpu_gb, states.host_gb) == (0.0, 18.0)
    states = states_of(config(deepspeed={"zero_optimization": {**zero, "stage": 2}}), BILLION, Sizes(8, 8))
    assert states.buffers_gb == 2e-6
    on_disk = {**zero, "offload_param": {"device": "nvme", "nvme_path": "/scratch"}}
    states = states_of(config(deepspeed={"zero_optimization": on_disk}), BILLION, Sizes(8, 8))
    assert states.disk_gb == 18.0
    given = {"type": "Lion", "params": {}}
    states = states_of(config(deepspeed={"optimizer": given}), BILLION, Sizes(1, 1))
    assert states.optimizer_gb == 8.0


def test_buffers_follow_the_configuration() -> None:
    def buffers(**zero: Any) -> float:
        run = config(zero_stage=1, deepspeed={"zero_optimization": zero})
        return states_of(run, BILLION, Sizes(2, 2)).buffers_gb

    assert (buffers(), buffers(overlap_comm=True), buffers(contiguous_gradients=False)) == (1.0, 2.0, 0.0)


@pytest.mark.parametrize(
    ("slurm", "gib"),
    [
        ({"gpus_per_node": "h100:8"}, 80),
        ({"gpus_per_node": "nvidia_h200:8"}, 141),
        ({"gpus_per_node": "a100_40gb:4"}, 40),
        ({"gpus_per_node": "a100-sxm4-80gb:4"}, 80),
        ({"gpus_per_node": "1g.10gb:1"}, 10),
        ({"gres": "gpu:V100:2"}, 32),
        ({"gres": "tmp:5,gres/gpu:l40s=4"}, 48),
        ({"gpus_per_node": 8}, None),
        ({"gres": "gpu:8"}, None),
        ({"gpus_per_node": "big:8"}, None),
    ],
)
def test_the_type_of_a_gpu_tells_its_memory(slurm: dict[str, Any], gib: int | None) -> None:
    expected_gb = None if gib is None else pytest.approx(gib * GIB / GB)
    assert gpu_memory_gb(SlurmConfig.model_validate(slurm)) == expected_gb


def needs(
    slurm: dict[str, Any],
    usable_gb: float | None = None,
    ranks: int = 8,
    deepspeed: dict[str, Any] | None = None,
    **train: Any,
) -> ModelNeeds:
    run = config(slurm, deepspeed, **train)
    return needs_of(run, Sizes(ranks, min(ranks, 8)), usable_gb)


def test_states_that_a_gpu_cannot_hold_are_a_shortage() -> None:
    shortage = needs({"gpus_per_node": "h100:8"}).shortage
    assert shortage is not None
    assert shortage.message == "the model's states alone take 107.8 GB of a GPU that has 85.9 GB"
    assert shortage.hint.startswith("raise train.zero_stage")


def test_what_was_measured_counts_before_the_gpus_type() -> None:
    assert needs({"gpus_per_node": "h100:8"}, usable_gb=140.0).shortage is None
    assert needs({"gpus_per_node": 8}, usable_gb=84.0).shortage is not None
    assert needs({"gpus_per_node": 8}).shortage is None
    assert needs({"gpus_per_node": "h100:0"}).shortage is None


def test_a_node_must_hold_what_is_offloaded_and_what_ranks_begin_with() -> None:
    offload = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    plenty, little = {"mem": "1T"}, {"mem": "64G"}
    assert needs({**plenty, "gpus_per_node": "h100:8"}, deepspeed=offload).shortage is None
    away = needs({**little, "gpus_per_node": "h100:8"}, deepspeed=offload).shortage
    assert away is not None
    assert away.message == "the model's offloaded states take 108 GB of each node, slurm.mem is 69 GB"
    begin = needs(little, zero_stage=1).shortage
    assert begin is not None
    assert "every rank has the whole model, which takes 216 GB of each node" in begin.message
    for pretrained in (False, True):
        assert needs(little, zero_stage=3, pretrained=pretrained).shortage is None


# -- what a plan shows -----------------------------------------------------------------------------------------


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> Any:
    """Runs `campaign plan` on a spec with these values, and gives what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def run(*options: str, **values: Any) -> str:
        train = {"dataset": "d", "global_batch": 128, "steps": 10, **values.pop("train", {})}
        spec = {"name": "models", "slurm": {"gpus_per_node": "h100:8"}, "train": train, **values}
        (tmp_path / "models.yaml").write_text(json.dumps(spec))
        assert main(["plan", "models.yaml", *options]) == 0
        return capsys.readouterr().out

    return run


def test_a_plan_shows_parameters_states_and_what_cannot_fit(plan: Any) -> None:
    shown = plan(train={"model": NAME}, matrix={"zero_stage": [0, 1], "lr": [1e-3, 1e-4]})
    header, first, *_ = shown.splitlines()[2:]
    assert header.split()[:4] == ["RUN", "PARAMS", "BATCH", "STATES"]
    assert "6.74B" in first
    assert "107.8 GB" in first
    assert "warning: zero_stage-0_lr-0.001 and 1 more run: the model's states alone take 107.8 GB of" in shown
    assert shown.count("warning:") == 1
    assert "\n  hint: raise train.zero_stage" in shown


def test_a_model_that_only_the_hub_knows_is_unknown(plan: Any) -> None:
    shown = plan(train={"model": "someone/unheard-of"})
    assert "unknown" in shown
    assert "STATES" not in shown


def test_a_compiled_backward_pass_gives_every_rank_all_gradients_and_joins_them() -> None:
    sizes: dict[str, Any] = {"precision": "bf16", "zero_stage": 2, "ranks": 8, "buffer": 0}
    apart, joined = model_states(BILLION, **sizes), model_states(BILLION, **sizes, joined=True)
    assert (apart.gradients_gb, joined.gradients_gb) == (0.25, 4.0)
    compiled = config(zero_stage=2, compile=True)
    assert states_of(compiled, BILLION, Sizes(8, 8)).gradients_gb == 4.0


def test_fsdp2_divides_fp32_states_among_the_ranks() -> None:
    states = model_states(BILLION, precision="bf16", zero_stage=3, ranks=8, engine="fsdp2")
    assert (states.weights_gb, states.gradients_gb, states.optimizer_gb) == (0.5, 0.5, 1.0)
    offloaded = model_states(BILLION, precision="bf16", zero_stage=3, ranks=8, engine="fsdp2", offload="full")
    assert (offloaded.gpu_gb, offloaded.host_gb) == (0.0, 16.0)
    whole = model_states(BILLION, precision="bf16", zero_stage=0, ranks=8, engine="fsdp2", whole_gradients=True)
    assert (whole.weights_gb, whole.gradients_gb) == (0.5, 4.0)
