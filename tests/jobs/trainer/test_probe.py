"""What a rank tells of its memory before its first step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from dscampaign.jobs.trainer.model import NextTokenLoss
from dscampaign.jobs.trainer.probe import pass_through, sample_cost_gb, to_come_bytes

pytestmark = pytest.mark.training

CPU = torch.device("cpu")


def tiny(dropout: float = 0.1) -> NextTokenLoss:
    torch.manual_seed(1)
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 32, "vocab_size": 64}
    drops = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return NextTokenLoss(GPT2LMHeadModel(GPT2Config(**sizes, **drops)).train(), 60)


def test_the_probe_leaves_no_trace() -> None:
    model = tiny()
    noticed: list[Any] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(noticed.append)
    weights, random = [p.detach().clone() for p in model.parameters()], torch.get_rng_state()
    pass_through(model, 2, 32, CPU)
    assert noticed == []
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(p, before) for p, before in zip(model.parameters(), weights, strict=True))
    assert torch.equal(torch.get_rng_state(), random)
    assert not model.model.get_input_embeddings()._forward_hooks


@pytest.mark.parametrize("frozen", [False, True])
def test_the_probe_goes_all_the_way_back(frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    model.model.get_input_embeddings().weight.requires_grad_(not frozen)
    seen: list[tuple[int, ...]] = []
    real = torch.autograd.grad

    def spy(loss: torch.Tensor, inputs: Any) -> Any:
        gradients = real(loss, inputs)
        seen.extend(tuple(gradient.shape) for gradient in gradients)
        return gradients

    monkeypatch.setattr(torch.autograd, "grad", spy)
    pass_through(model, 3, 32, CPU)
    assert seen == [(3, 32, 16)]


def test_the_probe_goes_through_recomputed_activations() -> None:
    model = tiny()
    model.model.gradient_checkpointing_enable({"use_reentrant": False})
    pass_through(model, 2, 32, CPU)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("room_gb", "sizes"), [(100.0, [1, 1, 4, 8]), (7.0, [1, 1, 2, 4]), (3.0, [1, 1, 2]), (2.0, [1, 1])]
)
def test_the_cost_of_a_sample_is_the_difference_of_the_largest_that_fit(room_gb: float, sizes: list[int]) -> None:
    tried: list[int] = []

    def peak_gb(samples: int) -> float:
        tried.append(samples)
        return 0.25 + 1.25 * samples

    cost_gb = sample_cost_gb(peak_gb, room_gb)
    assert tried == sizes
    assert cost_gb == (1.5 if len(sizes) == 2 else 1.25)


def engine(stage: int, **changes: Any) -> Any:
    model = torch.nn.Linear(10, 10, bias=False, dtype=torch.bfloat16)
    values = {"overlap": False, "contiguous": True, **changes}
    return SimpleNamespace(
        module=model,
        optimizer=SimpleNamespace(optimizer=torch.optim.AdamW([torch.zeros(100, requires_grad=True)])),
        zero_optimization_stage=lambda: stage,
        zero_contiguous_gradients=lambda: values["contiguous"],
        zero_overlap_comm=lambda: values["overlap"],
        zero_reduce_bucket_size=lambda: 1000,
    )


def test_what_training_adds_is_counted() -> None:
    gradients, bucket = 100 * 2, 1000 * 2
    assert to_come_bytes(engine(0)) == gradients
    assert to_come_bytes(engine(1)) == gradients + bucket
    assert to_come_bytes(engine(1, overlap=True)) == gradients + 2 * bucket
    assert to_come_bytes(engine(1, contiguous=False)) == gradients
    assert to_come_bytes(engine(2)) == bucket  # its optimizer's states are on the host, and so are its gradients
