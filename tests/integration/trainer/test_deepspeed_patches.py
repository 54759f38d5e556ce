"""Clipping without asking the device does what DeepSpeed's own does, and so does ZeRO 3 with less work for the host.

Buckets stay where DeepSpeed would miss them, and Muon is compiled for those that use it.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.compile import fx
from deepspeed.compile.passes import zero_1_and_2_compile
from deepspeed.runtime import compiler
from deepspeed.runtime.zero import (
    parameter_offload,
    partition_parameters,
    partitioned_param_coordinator,
    stage3,
    stage_1_and_2,
)
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from deepspeed.utils import nvtx
from torch import Tensor, nn
from torch.nn import functional

from dscampaign.jobs.trainer import deepspeed_patches, engine
from dscampaign.jobs.trainer.deepspeed_patches import (
    compile_plain_linear,
    keep_reduce_buckets,
    patch_process,
    remove_waits,
    spare_the_host,
)
from dscampaign.tests.integration.trainer.attempts import train_config


@pytest.fixture(autouse=True)
def _put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "mask_nan_or_inf_with_val_inplace"
    monkeypatch.setattr(stage_1_and_2, name, getattr(stage_1_and_2, name))
    monkeypatch.setattr(nvtx, "enable_nvtx", True)
    for module in (stage3, parameter_offload, partition_parameters, partitioned_param_coordinator):
        for name in ("print_rank_0", "iter_params", "debug_param2name_id_shape_device"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(module, name))


def optimizer(clip: float = 1.0, **changes: Any) -> Any:
    one = DeepSpeedZeroOptimizer.__new__(DeepSpeedZeroOptimizer)
    values = {"dtype": torch.bfloat16, "check_grad_overflow": False, "cpu_offload": False, "clip_grad": clip, **changes}
    one.__dict__.update(values, loss_scaler=SimpleNamespace(cur_scale=1.0, loss_scale=1.0), device="cpu")
    one.custom_loss_scaler = False
    return one


def clipped(one: Any, norm: float) -> list[Tensor]:
    gradients = [torch.tensor([3.0, -4.0]), torch.tensor([0.5])]
    one.unscale_and_clip_grads(gradients, torch.tensor(norm))
    return gradients


@pytest.mark.parametrize("norm", [0.0, 0.5, 1.0, 5.0, 1e20, float("inf"), -1.0])
@pytest.mark.parametrize("clip", [1.0, 0.25])
def test_gradients_become_what_deepspeed_makes_of_them(norm: float, clip: float) -> None:
    expected = clipped(optimizer(clip), norm)
    changed = optimizer(clip)
    remove_waits(changed)
    assert "unscale_and_clip_grads" in vars(changed)
    for found, one in zip(clipped(changed, norm), expected, strict=True):
        torch.testing.assert_close(found, one)


def test_a_norm_that_is_not_finite_is_marked_as_deepspeed_does() -> None:
    remove_waits(optimizer())
    for value, mark in ((float("nan"), -1.0), (float("inf"), -1.0), (2.0, 2.0)):
        norm = torch.tensor(value)
        stage_1_and_2.mask_nan_or_inf_with_val_inplace(norm)
        assert norm == mark


@pytest.mark.parametrize("changes", [{"dtype": torch.float16}, {"check_grad_overflow": True}, {"cpu_offload": True}])
def test_optimizers_that_need_their_waits_keep_them(changes: dict[str, Any]) -> None:
    one = optimizer(**changes)
    remove_waits(one)
    assert "unscale_and_clip_grads" not in vars(one)
    remove_waits(object())


def test_only_messages_that_somebody_wants_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(partition_parameters, "print_rank_0", lambda message, *_: said.append(message))
    spare_the_host()
    partition_parameters.print_rank_0("for nobody")
    partition_parameters.print_rank_0("for nobody", force=False)
    partition_parameters.print_rank_0("wanted", force=True)
    partition_parameters.print_rank_0("looked for", debug=True)
    assert said == ["wanted", "looked for"]


def test_parameters_are_those_that_deepspeed_finds() -> None:
    shared = nn.Parameter(torch.zeros(1))

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
            self.second.weight, self.own = self.first.weight, nn.Parameter(torch.ones(3))
            self.others: dict[str, nn.Parameter] = {}

        def ds_external_parameters(self) -> Any:
            return self.others.items()

    module, theirs = Inner(), partitioned_param_coordinator.iter_params
    spare_the_host()
    for used in ({}, {"of another module": shared}):
        module.others = used
        for recurse in (False, True):
            found = [id(one) for one in partitioned_param_coordinator.iter_params(module, recurse=recurse)]
            assert found == [id(one) for one in theirs(module, recurse)]


def test_only_the_compiler_gets_pytorchs_own_linear_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, calls = functional.linear, []

    def eager(*inputs: Tensor) -> Tensor:
        calls.append(inputs)
        return plain(*inputs)

    weights = partition_parameters.InsertPostInitMethodToModuleSubClasses
    monkeypatch.setattr(functional, "linear", functional.linear)
    compile_plain_linear()
    assert functional.linear is plain  # nothing was put in its place
    monkeypatch.setattr(weights, "linear_bk", plain, raising=False)
    monkeypatch.setattr(functional, "linear", eager)
    for _ in range(2):
        compile_plain_linear()
    layer, inputs = nn.Linear(2, 3), torch.ones(1, 2)
    expected = layer(inputs)
    assert len(calls) == 1
    torch.testing.assert_close(torch.compile(layer, backend="eager", fullgraph=True)(inputs), expected)
    assert len(calls) == 1


ACCUMULATING = {"deepcompile": True, "zero_stage": 1, "global_batch": 8, "micro_batch": 2}  # four passes
ONE_GRAPH = [(7, True)]


@pytest.fixture(autouse=True)
def _put_buckets_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zero_1_and_2_compile, "should_release_reduce_buckets", fx.should_release_reduce_buckets)


def test_kept_buckets_are_not_released() -> None:
    assert zero_1_and_2_compile.should_release_reduce_buckets(ONE_GRAPH, 7) is True
    keep_reduce_buckets()
    assert zero_1_and_2_compile.should_release_reduce_buckets(ONE_GRAPH, 7) is False


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "crash fix"),
        ({"micro_batch": 8}, "off"),
        ({"zero_stage": 2}, "off"),
        ({"deepcompile": False}, "off"),
        ({"deepspeed_patches": True}, "on"),
    ],
)
def test_deepspeed_as_installed_is_mended_only_if_it_would_abort(
    changes: dict[str, Any], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In DeepSpeed 0.19.8 a pass that only accumulates gradients makes no buckets again."""
    monkeypatch.setattr(engine, "version", lambda _package: "0.19.8")
    config = train_config(**{**ACCUMULATING, "deepspeed_patches": False, **changes, "world_size": 1})
    assert engine.patches(config) == state
    monkeypatch.setattr(engine, "version", lambda _package: "0.20.0")
    assert engine.patches(config) in {"off", "unverified"}


@pytest.mark.parametrize(("optimizer", "compiled"), [("AdamW", False), ("Muon", True)])
def test_muon_is_compiled_only_for_those_that_use_it(
    optimizer: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "deepspeed.runtime.zero.muon.original_muon", raising=False)
    monkeypatch.setattr(deepspeed_patches, "_patch_functions", lambda **_: None)
    made: list[str] = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: made.append(function.__name__))
    theirs = compiler.compile
    patch_process(train_config(), {"optimizer": {"type": optimizer}})
    assert compiler.compile is theirs
    importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
    assert ("zeropower_via_newtonschulz5" in made) is compiled


def test_a_stream_is_one_object_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    current: dict[int, tuple[int, int, int]] = {0: (1, 0, 1), 1: (1, 1, 1)}
    made: list[int] = []

    def make(device: int) -> object:
        made.append(device)
        return object()

    monkeypatch.setattr(deepspeed_patches, "_NUMBER_OF_STREAM", current.__getitem__)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", make)
    deepspeed_patches._stream.cache_clear()
    first = deepspeed_patches._current_stream()
    assert deepspeed_patches._current_stream(0) is first
    other = deepspeed_patches._current_stream(1)
    current[0] = (2, 0, 1)
    assert len({id(first), id(other), id(deepspeed_patches._current_stream())}) == 3
    assert made == [0, 1, 0]


@pytest.mark.parametrize(
    ("installed", "wanted", "state"),
    [("0.19.8", True, "on"), ("0.19.8+cu128", True, "on"), ("0.19.8", False, "off"), ("0.20.0", True, "unverified")],
)
def test_only_verified_versions_are_patched(
    installed: str, wanted: bool, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "version", lambda _package: installed)
    assert engine.patches(train_config(deepspeed_patches=wanted)) == state


@pytest.mark.nightly
def test_the_trainer_loads_patches_only_to_apply_them() -> None:
    """Another version of DeepSpeed may lack the parts that their module imports."""
    name = "dscampaign.jobs.trainer.deepspeed_patches"
    code = f"import sys, dscampaign.jobs.trainer.train; sys.exit('{name}' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
