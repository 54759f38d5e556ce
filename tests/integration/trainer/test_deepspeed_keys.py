"""The keys that DeepSpeed reads, as it reads them, and what is said of each."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.compile.config import CompileConfig
from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
from deepspeed.runtime import config as deepspeed_config
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.activation_checkpointing import config as checkpointing
from deepspeed.runtime.data_pipeline import constants as data_pipeline
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig, DeepSpeedZeroOffloadParamConfig
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

from dscampaign.orchestrator.spec.deepspeed_keys import ANY, CLOSED, KEYS, POWER, READ_HERE, Kind
from dscampaign.orchestrator.spec.deepspeed_sections import SERVED, UNSERVED, misspelt
from dscampaign.orchestrator.spec.deepspeed_types import without_wrong_values

READ: set[str] = set()
MODELS: dict[str, Any] = {
    "zero_optimization": DeepSpeedZeroConfig,
    "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
    "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
    "zero_optimization.leaf_module": DeepSpeedZeroLeafModuleConfig,
    "bf16": DeepSpeedBF16Config,
    "fp16": DeepSpeedFP16Config,
    "compile": CompileConfig,
    "comms_logger": CommsLoggerConfig,
    "tensorboard": TensorBoardConfig,
    "csv_monitor": CSVConfig,
    "wandb": WandbConfig,
    "comet": CometConfig,
    "timers.throughput": DeepSpeedThroughputTimerConfig,
}
PROBES: tuple[Any, ...] = (
    *(True, False, 0, 1, 2, -1, -5, 10**9, 0.5, 1.5, -0.5, 2.0, 1e6, float("inf"), float("nan"), None),
    *("", "x", "500", "0.5", "5e8", "500MB", "cpu", "nvme", "bf17", "bf16", "warn", "debug", "mean"),
    *([], [1], ["cpu"], ["z1"], ["z9"], {}, {"a": 1}),
)
"""Values that keys of one type or another take."""
ON = {"fp16": {"enabled": True}}
"""What makes DeepSpeed look at a section's numbers."""


def nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def refused_here(section: str, key: str, value: Any) -> bool:
    return bool(without_wrong_values({"deepspeed": nested(f"{section}.{key}".lstrip("."), value)})[1])


def refused_by(model: Any, values: dict[str, Any]) -> bool:
    try:
        model(**values)
    except (ValueError, AssertionError, TypeError, AttributeError):
        return True
    return False


def is_meant(kind: Kind, key: str, value: Any) -> bool:
    """Whether a value that DeepSpeed converts is one that a spec may have."""
    if kind.of == "bool":
        return isinstance(value, bool if kind == READ_HERE else int)
    too_large = kind == POWER and isinstance(value, int | float) and value > 1023
    return not isinstance(value, bool) and not too_large and key != "prof_ops"


class _Recording(dict[str, Any]):
    """Notes every key that is asked for; copies do, too."""

    def get(self, key: str, default: Any = None) -> Any:
        READ.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        READ.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        READ.add(str(key))
        return super().__contains__(key)


def test_every_key_at_the_top_is_known() -> None:
    deepspeed_config.DeepSpeedConfig(_Recording(train_batch_size=1))
    assert len(READ) > 40
    assert not READ - SERVED - UNSERVED.keys()


def test_what_deepspeed_stops_at_is_refused() -> None:
    removed = {*getattr(deepspeed_config, "_REMOVED_TOP_LEVEL_CONFIG_KEYS", ())}
    removed |= {f"zero_optimization.{key}" for key in getattr(deepspeed_config, "_REMOVED_ZERO_CONFIG_KEYS", ())}
    assert not removed - {key for key, row in UNSERVED.items() if row.removed}


@pytest.mark.parametrize(("name", "model"), MODELS.items())
def test_every_key_of_a_section_that_takes_no_other_is_known(name: str, model: Any) -> None:
    keys = {key for field, info in model.model_fields.items() for key in (field, info.alias) if key}
    assert model.model_config["extra"] == "forbid"
    assert keys == CLOSED[name]


def test_a_key_by_both_of_its_names_is_refused() -> None:
    keys = CLOSED["zero_optimization"]
    twice = [(key, f"stage3_{key}") for key in keys if f"stage3_{key}" in keys]
    assert twice
    for names in twice:
        both = dict.fromkeys(names, 1)
        assert refused_by(DeepSpeedZeroConfig, both)
        assert [*misspelt({"zero_optimization": both})]


def test_the_sections_of_scripts_of_one_s_own_have_the_keys_of_deepspeed() -> None:
    """Its schedules take theirs as arguments; the rest it reads by the values of its constants."""
    schedules = (getattr(lr_schedules, name).__init__ for name in lr_schedules.VALID_LR_SCHEDULES)
    arguments = {name for made in schedules for name in inspect.signature(made).parameters}
    assert arguments - {"self", "optimizer"} == set(KEYS["scheduler.params"])
    for section, constants in (("activation_checkpointing", checkpointing), ("data_efficiency", data_pipeline)):
        assert set(KEYS[section]) <= {value for value in vars(constants).values() if isinstance(value, str)}


def test_every_section_that_takes_no_other_key_is_compared() -> None:
    assert MODELS.keys() == CLOSED.keys()


@pytest.mark.parametrize(("name", "key"), [(name, key) for name in MODELS for key in sorted(CLOSED[name])])
def test_a_section_s_values_are_those_of_deepspeed(name: str, key: str) -> None:
    """What passes here passes there; what is refused here is refused there, but for numbers that are no choice."""
    kind = KEYS[name][key]
    if kind == ANY or kind.of == "section":
        return
    for value in PROBES:
        beside = {"stage": 1} if key == "compute_grad_norm" else ON.get(name, {})
        there = refused_by(MODELS[name], {**beside, key: value})
        here = refused_here(name, key, value)
        assert here or not there, f"{name}.{key}: {value!r} passes, and DeepSpeed refuses it"
        if here and not there:
            assert not is_meant(kind, key, value), f"{name}.{key}: {value!r} is refused, and DeepSpeed takes it"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("communication_data_type", "bf17"),
        ("gradient_allreduce_op", "max"),
        ("checkpoint.tag_validation", "maybe"),
        ("checkpoint.parallel_write.pipeline_stage", "often"),
        ("data_types.keep_in_fp32_modules", [1]),
        ("data_types.keep_in_fp32_modules", None),
        ("torch_autocast.lower_precision_safe_modules", [1]),
        ("torch_autocast.dtype", "bf17"),
        ("wall_clock_breakdown", None),
        *((section, 3) for section, kind in KEYS[""].items() if kind.of == "section"),
    ],
)
def test_what_deepspeed_stops_at_elsewhere_is_refused(key: str, value: Any) -> None:
    section, _, last = key.rpartition(".")
    assert refused_here(section, last, value)
    with pytest.raises((ValueError, TypeError, AttributeError, deepspeed_config.DeepSpeedConfigError)):
        deepspeed_config.DeepSpeedConfig({"train_batch_size": 1, **nested(key, value)})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("communication_data_type", "BF16"),
        ("communication_data_type", None),
        ("gradient_allreduce_op", "Sum"),
        ("checkpoint.tag_validation", "Warn"),
        ("checkpoint.parallel_write.pipeline_stage", True),
        ("data_types.keep_in_fp32_modules", ["norm"]),
        ("data_types.keep_in_fp32_modules", "auto"),
        ("data_types.grad_accum_dtype", "fp32"),
        ("torch_autocast.dtype", "bfloat16"),
        ("steps_per_print", None),
        ("aio", None),
        ("aio.block_size", 1 << 20),
        ("flops_profiler.module_depth", -1),
    ],
)
def test_what_deepspeed_takes_elsewhere_passes(key: str, value: Any) -> None:
    section, _, last = key.rpartition(".")
    assert not refused_here(section, last, value)
    deepspeed_config.DeepSpeedConfig({"train_batch_size": 1, **nested(key, value)})
