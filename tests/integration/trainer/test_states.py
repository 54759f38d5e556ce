"""The arithmetic of a model's states against what DeepSpeed itself holds, on two CPU ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dscampaign.orchestrator.memory.zero_memory import model_states
from dscampaign.tests.integration.trainer.attempts import ON_CPU, WORLD_SIZE
from dscampaign.tests.integration.trainer.conftest import Launch

pytestmark = [pytest.mark.nightly, pytest.mark.training]

Held = dict[tuple[int, str, int], float]
"""Bytes for each parameter, by ZeRO stage, precision and accumulation."""

SMALL = 0.25
"""Bytes for each parameter: buffers of a layer's size, and what is rounded up for each layer."""


@pytest.fixture(scope="module")
def held(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Held:
    """What the first rank holds."""
    result = tmp_path_factory.mktemp("held") / "result.json"
    code, output = launch(str(Path(__file__).with_name("held.py")), str(result), env=ON_CPU).finish()
    assert code == 0, output
    return {tuple(case): needed for *case, needed in json.loads(result.read_text())}


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", range(4))
def test_states_are_what_deepspeed_holds(stage: int, precision: str, accumulation: int, held: Held) -> None:
    choice: dict[str, Any] = {"precision": precision, "zero_stage": stage, "accumulation": accumulation}
    states = model_states(10**9, **choice, ranks=WORLD_SIZE, buffer=0)
    assert held[stage, precision, accumulation] == pytest.approx(states.gpu_gb, abs=SMALL)
