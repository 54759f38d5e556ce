"""A model whose parameters lie in two tensors, so that an optimizer step is a few large operations (ADR 8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

MATRICES: Final = "matrices"
VECTORS: Final = "vectors"


class FlatModel(nn.Module):
    """The inner model, with views of ``matrices`` (two and more dimensions) and ``vectors`` for its parameters."""

    matrices: nn.Parameter
    vectors: nn.Parameter

    def __init__(self, inner: nn.Module, device: torch.device) -> None:
        super().__init__()
        parameters = list(inner.named_parameters())
        self._parts: dict[str, dict[str, torch.Size]] = {}  # shapes by name
        for flat, members in (
            (MATRICES, [(name, p) for name, p in parameters if p.dim() >= 2]),
            (VECTORS, [(name, p) for name, p in parameters if p.dim() < 2]),
        ):
            self._parts[flat] = {name: p.shape for name, p in members}
            joined = torch.cat([p.detach().flatten() for _, p in members])
            self.register_parameter(flat, nn.Parameter(joined.to(device)))
            for _, parameter in members:
                parameter.data = torch.empty(0)
        # Not registered as a part: it has nothing to be trained, moved or saved.
        self._hidden = (inner.to(device),)
        self.register_state_dict_post_hook(_to_names)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_from_names)  # type: ignore[no-untyped-call]

    def forward(self, *inputs: Tensor) -> Tensor:
        """The inner model's result."""
        flats = {MATRICES: self.matrices, VECTORS: self.vectors}
        result: Tensor = functional_call(self._hidden[0], _views(flats, self._parts), inputs)
        return result

    def train(self, mode: bool = True) -> Self:
        """Set the inner model's mode too."""
        self._hidden[0].train(mode)
        return super().train(mode)


def _views(flats: Mapping[str, Tensor], parts: Mapping[str, Mapping[str, torch.Size]]) -> dict[str, Tensor]:
    return {
        name: piece.view(shape)
        for flat, tensor in flats.items()
        for (name, shape), piece in zip(
            parts[flat].items(), tensor.split([shape.numel() for shape in parts[flat].values()]), strict=True
        )
    }


def _to_names(module: Any, state: dict[str, Any], prefix: str, _metadata: object) -> None:
    """A saved state has the inner model's own names, so that other programs can load it."""
    flats = {flat: state.pop(prefix + flat) for flat in (MATRICES, VECTORS)}
    state.update({prefix + name: view for name, view in _views(flats, module._parts).items()})  # noqa: SLF001


def _from_names(module: Any, state: dict[str, Any], prefix: str, *_: object) -> None:
    for flat, parts in module._parts.items():  # noqa: SLF001
        pieces = [state.pop(prefix + name, None) for name in parts]
        if all(piece is not None for piece in pieces):
            state[prefix + flat] = torch.cat([piece.flatten() for piece in pieces])
