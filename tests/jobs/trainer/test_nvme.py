"""ZeRO-Infinity on a plain disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deepspeed.ops.op_builder.cpu import AsyncIOBuilder

from .attempts import Attempt

pytestmark = [
    pytest.mark.training,
    pytest.mark.skipif(not AsyncIOBuilder().is_compatible(verbose=False), reason="no libaio here (libaio-dev)"),
]


def test_what_lies_on_a_disk_learns_the_same(train_many: Callable[..., dict[str, Attempt]], tmp_path: Path) -> None:
    model = {"model_type": "gpt2", "n_layer": 1, "n_embd": 512, "n_head": 2}  # DeepSpeed leaves less than 1 MB alone
    trained = train_many(
        ddp={"model": model, "engine": "ddp", "zero_stage": 0},
        infinity={"model": model, "zero_stage": 3, "offload": "nvme", "nvme_path": str(tmp_path)},
    )
    assert trained["infinity"].values("loss") == pytest.approx(trained["ddp"].values("loss"), abs=1e-3)
