"""The keys that DeepSpeed reads, as it reads them, and what is said of each."""

from __future__ import annotations

from typing import Any

import pytest
from deepspeed.runtime import config as deepspeed_config
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig, DeepSpeedZeroOffloadParamConfig

from dscampaign.orchestrator.spec.deepspeed_sections import CLOSED, SERVED, UNSERVED

READ: set[str] = set()


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


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("zero_optimization", DeepSpeedZeroConfig),
        ("zero_optimization.offload_param", DeepSpeedZeroOffloadParamConfig),
        ("zero_optimization.offload_optimizer", DeepSpeedZeroOffloadOptimizerConfig),
        ("bf16", DeepSpeedBF16Config),
        ("fp16", DeepSpeedFP16Config),
    ],
)
def test_every_key_of_a_section_that_takes_no_other_is_known(name: str, model: Any) -> None:
    keys = {key for field, info in model.model_fields.items() for key in (field, info.alias) if key}
    assert model.model_config["extra"] == "forbid"
    assert keys == CLOSED[name]
