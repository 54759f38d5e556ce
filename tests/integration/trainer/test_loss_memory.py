"""The bytes of the loss that a plan counts with, against the tensors that PyTorch makes for it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dscampaign.jobs.trainer import fused_loss
from dscampaign.orchestrator.memory.loss_memory import STRETCH, loss_gb
from dscampaign.orchestrator.spec.model import RunConfig

TOKENS, VOCABULARY, WIDTH = 256, 1024, 8


class _Live(TorchDispatchMode):
    """Counts the bytes of the tensors that operators make, and how many there were at most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        at, size = storage._cdata, storage.nbytes()
        if at in self._seen:
            return
        self._seen.add(at)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, at, size)

    def _gone(self, at: int, size: int) -> None:
        self._seen.discard(at)
        self.now -= size


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_the_plain_loss_takes_what_the_plan_counts_with(precision: str) -> None:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    hidden, weight = (torch.randn(n, WIDTH, dtype=dtype, requires_grad=True) for n in (TOKENS, VOCABULARY))
    targets = torch.randint(VOCABULARY, (TOKENS,))
    with _Live() as live:
        fused_loss.plain_cross_entropy(hidden @ weight.t(), targets, VOCABULARY).backward()
    model = {"model_type": "gpt2", "vocab_size": VOCABULARY}
    train = {"model": model, "dataset": "d", "global_batch": 1, "steps": 1, "seq_len": TOKENS, "precision": precision}
    least_gb = loss_gb(RunConfig.model_validate({"train": train}), 1)
    assert least_gb is not None
    assert least_gb <= live.peak / 1e9 <= 1.05 * least_gb


def test_the_fused_loss_works_on_as_many_tokens_as_the_plan_counts_with() -> None:
    assert fused_loss.STRETCH == STRETCH
