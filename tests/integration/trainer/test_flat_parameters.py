"""A model whose parameters lie in two tensors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dscampaign.jobs.trainer.flat_parameters import MATRICES, VECTORS, FlatModel, join_blocks, part

CPU = torch.device("cpu")


class Tied(nn.Module):
    """A table that is used twice, a vector, dropout and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.table.weight
        self.drop = nn.Dropout(0.5)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.drop(self.norm(self.table(tokens)) + self.shift)
        result: Tensor = self.output(hidden).square().mean()
        return result


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


TOKENS = torch.tensor([0, 3, 6, 3])


def test_it_computes_and_learns_what_the_model_does() -> None:
    plain, flat = Tied().eval(), FlatModel(Tied(), CPU).eval()
    loss, expected = flat(TOKENS), plain(TOKENS)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    assert [name for name, _ in flat.named_parameters()] == ["matrices", "vectors"]
    vectors = torch.cat([_gradient(plain.norm.weight), _gradient(plain.norm.bias)])
    torch.testing.assert_close(_gradient(flat.matrices), _gradient(plain.table.weight).flatten())
    torch.testing.assert_close(_gradient(flat.vectors), vectors)


def test_its_mode_is_the_model_s() -> None:
    flat = FlatModel(Tied(), CPU)
    flat.eval()
    assert flat(TOKENS) == flat(TOKENS)
    flat.train()
    torch.manual_seed(2)
    assert flat(TOKENS) != flat(TOKENS)


def test_a_saved_state_has_the_model_s_own_names() -> None:
    plain, flat = Tied(), FlatModel(Tied(), CPU)
    state = flat.state_dict()
    assert sorted(state) == ["norm.bias", "norm.weight", "table.weight"]
    plain.load_state_dict(state, strict=False)  # it says the tied table a second time
    with torch.no_grad():
        flat.matrices.zero_()
        flat.vectors.zero_()
    flat.load_state_dict(plain.state_dict(), strict=False)
    torch.testing.assert_close(flat.eval()(TOKENS), plain.eval()(TOKENS))


def test_an_incomplete_state_is_refused() -> None:
    flat = FlatModel(Tied(), CPU)
    state = {name: value for name, value in flat.state_dict().items() if name != "norm.bias"}
    with pytest.raises(RuntimeError, match="vectors"):
        flat.load_state_dict(state)


class Block(nn.Module):
    """A block with an attribute that its model reads, and an argument by name."""

    kind = "attention"

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, hidden: Tensor, *, scale: float) -> tuple[Tensor]:
        return (hidden + scale * self.linear(self.norm(hidden)),)


def test_a_module_without_vectors_has_one_tensor() -> None:
    plain = nn.Linear(4, 4, bias=False)
    expected = plain(torch.ones(4))
    flat = FlatModel(plain, CPU)
    assert [name for name, _ in flat.named_parameters()] == ["matrices"]
    torch.testing.assert_close(flat(torch.ones(4)), expected)
    assert list(flat.state_dict()) == ["weight"]


def test_each_block_has_two_parameters_and_computes_the_same() -> None:
    torch.manual_seed(1)
    model, hidden = nn.ModuleList([Block(), Block()]), torch.randn(3, 4)
    plain = [{name: p.detach().clone() for name, p in block.named_parameters()} for block in model]
    expected = [block(hidden, scale=0.5)[0] for block in model]
    shapes = Block()
    join_blocks(model, list(model))
    assert [name for name, _ in model.named_parameters()] == ["0.matrices", "0.vectors", "1.matrices", "1.vectors"]
    for block, weights, result in zip(model, plain, expected, strict=True):
        assert isinstance(block, FlatModel)
        assert block.kind == "attention"
        torch.testing.assert_close(block(hidden, scale=0.5)[0], result)
        parted = part({MATRICES: block.matrices.detach(), VECTORS: block.vectors.detach()}, shapes)
        assert parted.keys() == weights.keys()
        assert all(torch.equal(parted[name], weights[name]) for name in weights)
