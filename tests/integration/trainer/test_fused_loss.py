"""Output layer and cross-entropy in one: the same loss and the same gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dscampaign.jobs.trainer import fused_loss
from dscampaign.jobs.trainer.fused_loss import IGNORED_TARGET, linear_cross_entropy

TOKENS, WIDTH, VOCAB, PADDED = 37, 16, 21, 24


@pytest.fixture(autouse=True)
def _short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_loss, "STRETCH", 10)  # the last one is shorter


def _inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(PADDED, WIDTH, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    target = torch.randint(VOCAB, (TOKENS,), generator=generator)
    target[[0, 11, 36]] = IGNORED_TARGET
    return hidden, weight, target


def _reference(hidden: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits = (hidden @ weight.t())[:, :VOCAB].float()
    loss = torch.nn.functional.cross_entropy(logits, target, ignore_index=IGNORED_TARGET)
    d_hidden, d_weight = torch.autograd.grad(loss, (hidden, weight))
    return loss, d_hidden, d_weight


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_the_loss_and_its_gradients_are_those_of_whole_logits(compiled: bool) -> None:
    hidden, weight, target = _inputs(torch.float32)
    compute = torch.compile(linear_cross_entropy, backend="aot_eager") if compiled else linear_cross_entropy
    loss = compute(hidden, weight, target, VOCAB)
    found = (loss, *torch.autograd.grad(loss, (hidden, weight)))
    for one, expected in zip(found, _reference(hidden, weight, target), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-6)
    assert not found[2][VOCAB:].any()  # rows of padding learn nothing


def test_a_loss_scale_keeps_small_gradients_of_half_precision() -> None:
    """Divided by the number of tokens before the scale comes in, many of these would be zero."""
    hidden, weight, target = _inputs(torch.float16)
    scale = 2.0**14
    small = 2.0**-14
    loss = linear_cross_entropy(hidden, weight, target, VOCAB) * (scale * small)
    gradients = torch.autograd.grad(loss, (hidden, weight))
    exact_hidden, exact_weight = (tensor.detach().double().requires_grad_() for tensor in (hidden, weight))
    exact = _reference(exact_hidden, exact_weight, target)
    for found, expected in zip(gradients, exact[1:], strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=5e-3, atol=5e-4)


def test_autocast_decides_the_precision() -> None:
    hidden, weight, target = _inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, target, VOCAB)
    gradients = torch.autograd.grad(loss, (hidden, weight))
    expected = _reference(hidden, weight, target)
    torch.testing.assert_close(loss, expected[0], rtol=2e-2, atol=2e-2)
    assert [gradient.dtype for gradient in gradients] == [torch.float32] * 2
    torch.testing.assert_close(gradients[1], expected[2], rtol=5e-2, atol=5e-3)


def test_a_frequent_token_does_not_overflow_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_loss, "STRETCH", 8192)
    hidden = torch.zeros(8192, WIDTH)
    hidden[:, 0] = 30.0
    target = torch.arange(8192) % 2 * 5
    half = [tensor.half().requires_grad_() for tensor in (hidden, torch.zeros(PADDED, WIDTH))]
    gradient = torch.autograd.grad(linear_cross_entropy(half[0], half[1], target, VOCAB), half[1])[0]
    full = [tensor.detach().float().requires_grad_() for tensor in half]
    torch.testing.assert_close(gradient.float(), _reference(full[0], full[1], target)[2], rtol=1e-2, atol=1e-2)


def test_without_gradients_there_is_the_same_loss_a_stretch_at_a_time() -> None:
    hidden, weight, target = _inputs(torch.float32)
    with torch.no_grad():
        loss = linear_cross_entropy(hidden, weight, target, VOCAB)
    torch.testing.assert_close(loss, _reference(hidden, weight, target)[0])
