"""The program that a search for the micro-batch times is that of the training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dscampaign.jobs.trainer import search
from dscampaign.tests.integration.trainer.attempts import train_config


def test_each_size_is_compiled_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the second one is compiled for sizes of any kind, and the training is not."""
    symbolic: list[bool] = []

    def recorded(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        symbolic.append(any(isinstance(one, torch.SymInt) for one in inputs))
        return graph.forward

    compiled = torch.compile(lambda tokens: (tokens.float() ** 2).mean(), backend=recorded)
    engine: Any = SimpleNamespace(device=torch.device("cpu"))
    monkeypatch.setattr(search, "_step", lambda _, tokens: (float(compiled(tokens)), 1.0))
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_: None)
    model: Any = SimpleNamespace(vocab_size=50)
    job: Any = SimpleNamespace(gpu_mem_bytes=None, attempt_dir=Path())
    for size in (2, 4, 8, 16):
        search._tried(engine, model, replace(train_config(compile=True), micro_batch=size), job, share=16)
    assert symbolic == [False] * 4
