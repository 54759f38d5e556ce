"""The keys that DeepSpeed reads, as it reads them, and what is said of each."""

from __future__ import annotations

from typing import Any

from deepspeed.runtime import config as deepspeed_config

from dscampaign.orchestrator.spec.deepspeed_sections import SERVED, UNSERVED

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
