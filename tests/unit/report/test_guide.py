"""When to use which strategy: planted speeds and memory, and sizes that can be worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from dscampaign.orchestrator.report.compare.baseline import compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.guide import Guidance, guidance
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.planted import MODEL, Plant, Planted

NO_LIMIT = {"n0": 0.0}
NO_BUFFERS = {"deepspeed": {"zero_optimization": {"contiguous_gradients": False}}}


def one(name: str, step_s: float | Sequence[float], stage: int, reserved_gb: float = 10.0, **more: Any) -> Planted:
    train = {"zero_stage": stage, "precision": "bf16", **more.pop("train", {})}
    given = {
        "host_limits_gb": NO_LIMIT,
        "config": NO_BUFFERS,
        "step_s": (step_s,) * 3 if isinstance(step_s, float) else step_s,
        **more,
    }
    return Planted(name, train=train, reserved_gb=reserved_gb, **given)


def found(runs: Sequence[MeasuredRun]) -> dict[str, Guidance]:
    conditions = conditions_of(runs)
    said = guidance(compare_to_baseline(conditions, conditions[0]))
    return {each.condition.name: each for each in said}


def test_the_largest_model_is_what_its_states_leave_room_for(planted: Plant) -> None:
    """16 bytes a parameter without sharding, of which ZeRO 3 keeps a part on each GPU."""
    said = found(planted(one("whole", 0.1, 0), one("parts", 0.2, 3)))
    parameters = MODEL["parameters"]
    besides_gb = 10.0 - 16 * parameters / 1e9
    assert said["whole"].states_gb == pytest.approx(16 * parameters / 1e9)
    for gpus, most in said["whole"].largest.items():
        assert most == pytest.approx((80.0 - besides_gb) * 1e9 / 16), gpus
    besides_gb = 10.0 - 16 * parameters / 2 / 1e9  # of two ranks
    for gpus, most in said["parts"].largest.items():
        assert most == pytest.approx((80.0 - besides_gb) * 1e9 / 16 * gpus)


def test_the_fastest_is_for_models_that_fit_and_sharding_for_larger_ones(planted: Plant) -> None:
    said = found(planted(one("whole", 0.1, 0), one("parts", 0.2, 3)))
    assert list(said) == ["whole", "parts"]
    assert said["whole"].use_when == "the model fits: nothing here is faster"
    assert said["whole"].avoid_when == "the model is larger than 4.5G parameters"
    assert said["parts"].use_when == "the model is larger than 4.5G parameters"
    assert said["parts"].avoid_when == "the model fits with zero0, which is 2.00 × as fast"


def test_what_is_slower_and_holds_no_more_is_for_nothing(planted: Plant) -> None:
    said = found(planted(one("lean", 0.1, 3, 5.0), one("plain", 0.2, 0)))
    assert said["plain"].use_when == "never, as measured here"
    assert said["plain"].avoid_when == "always: zero3 is 2.00 × as fast and trains models as large"


def test_what_is_not_established_to_be_slower_is_not_called_so(planted: Plant) -> None:
    said = found(planted(one("whole", (0.08, 0.1, 0.14), 0), one("parts", (0.09, 0.11, 0.13), 3)))
    assert {each.use_when for each in said.values()} == {"the model fits: nothing here is faster"}


@pytest.mark.parametrize("repeats", [1, 3])
def test_what_ties_is_not_called_slower(planted: Plant, repeats: int) -> None:
    """As a recommendation has it, which then goes by memory."""
    said = found(planted(one("first", (0.1,) * repeats, 1), one("second", (0.1003,) * repeats, 2)))
    assert [each.use_when for each in said.values()] == ["the model fits: nothing here is faster"] * 2


def test_a_faster_gpu_makes_no_strategy_faster(planted: Plant) -> None:
    """Where the same request got either."""
    slow = one("slow", 0.2, 1, device="NVIDIA A100-SXM4-80GB")
    quick = one("quick", 0.1, 2, device="NVIDIA H100 80GB HBM3")
    said = found(planted(slow, quick))
    assert [each.use_when for each in said.values()] == ["the model fits: nothing here is faster"] * 2


def test_without_repeats_what_looks_slower_is_called_so(planted: Plant) -> None:
    said = found(planted(one("lean", (0.1,), 3, 5.0), one("plain", (0.11,), 0)))
    assert said["plain"].use_when == "never, as measured here"


def test_offloaded_states_have_to_fit_the_node(planted: Plant) -> None:
    """12 bytes of the optimizer and 4 of its gradients lie on the host, 2 of weights on the GPUs."""
    away: dict[str, Any] = {"train": {"offload": "optimizer"}}
    said = found(
        planted(
            one("here", 0.1, 3),
            one("away", 0.3, 3, **away),
            one("limited", 0.4, 3, **away, host_limits_gb={"n0": 64.0}, params={"slurm.mem": "64G"}),
        )
    )
    parameters = MODEL["parameters"]
    assert (
        said["away"].needs
        == f"DeepSpeed, gathers weights for every block, {16 * parameters / 1e9:.1f} GB of host memory a node"
    )
    assert said["limited"].largest == {gpus: pytest.approx(64e9 / 16) for gpus in (1, 2, 4, 8)}
    assert said["away"].largest[1] > said["here"].largest[1]


def test_a_disk_sets_no_bound(planted: Plant) -> None:
    away = {"offload": "nvme", "nvme_path": "/swap"}
    said = found(planted(one("here", 0.1, 3), one("disk", 0.3, 3, train=away)))
    assert set(said["disk"].largest.values()) == {math.inf}
    assert "no checkpoints" in said["disk"].needs


@pytest.mark.parametrize(
    "other",
    [
        one("same", 0.2, 0, train={"lr": 1e-5}),
        one("other", 0.2, 3, train={"precision": "fp32"}),
        one("unread", 0.2, 3, train={"no_such_field": 1}),
        one("script", 0.2, 3, printed=True),
    ],
    ids=lambda planted: planted.name,
)
def test_only_strategies_are_compared_and_only_where_all_else_is_the_same(planted: Plant, other: Planted) -> None:
    assert found(planted(one("whole", 0.1, 0), other)) == {}
