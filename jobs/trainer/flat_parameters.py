"""A module whose parameters lie in two tensors, so that a step is a few large operations (ADR 8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

import torch
from deepspeed import zero
from deepspeed.runtime.zero.partition_parameters import is_zero_param
from torch import Tensor, nn
from torch.func import functional_call

MATRICES: Final = "matrices"
VECTORS: Final = "vectors"


class FlatModel(nn.Module):
    """The inner module, with views of ``matrices`` (two and more dimensions) and ``vectors`` for its parameters.

    A module without parameters of a kind has no tensor of that kind.
    """

    def __init__(self, inner: nn.Module, device: torch.device) -> None:
        super().__init__()
        parameters, self._parts = dict(inner.named_parameters()), _shapes(inner)
        for flat, shapes in self._parts.items():
            joined = torch.cat([parameters[name].detach().flatten() for name in shapes])
            self.register_parameter(flat, nn.Parameter(joined.to(device)))
        for parameter in parameters.values():
            parameter.data = torch.empty(0)
        # Not registered as a part: it has nothing to be trained, moved or saved.
        self._hidden = (inner.to(device),)
        self.register_state_dict_post_hook(_to_names)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_from_names)  # type: ignore[no-untyped-call]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The inner module's result."""
        flats = {flat: getattr(self, flat) for flat in self._parts}
        return functional_call(self._hidden[0], _views(flats, self._parts), inputs, named)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the inner module, if this has none of that name."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "_hidden":  # not set yet
                raise
            return getattr(self._hidden[0], name)

    def train(self, mode: bool = True) -> Self:
        """Set the inner model's mode too."""
        self._hidden[0].train(mode)
        return super().train(mode)


def join_blocks(model: nn.Module, blocks: Iterable[nn.Module]) -> None:
    """Replace each block by a `FlatModel`, also if ZeRO 3 has partitioned its parameters. All ranks call it."""
    places = {block: (parent, name) for parent in model.modules() for name, block in parent.named_children()}
    for block in blocks:
        weights: list[Any] = list(block.parameters())
        with zero.GatheredParameters(weights):
            joined = FlatModel(block, weights[0].device)
        if is_zero_param(weights[0]):
            weights[0].convert_to_zero_parameters(param_list=list(joined.parameters()))
            for weight in weights:
                del weight.ds_tensor  # this rank's part
        parent, name = places[block]
        setattr(parent, name, joined)


def part(flats: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that the flat tensors hold, by name, in the shapes of `module`."""
    return _views(flats, _shapes(module))


def _shapes(module: nn.Module) -> dict[str, dict[str, torch.Size]]:
    """Return the shapes of parameters by name, of each flat tensor."""
    shapes: dict[str, dict[str, torch.Size]] = {MATRICES: {}, VECTORS: {}}
    for name, parameter in module.named_parameters():
        shapes[MATRICES if parameter.dim() >= 2 else VECTORS][name] = parameter.shape
    return {flat: own for flat, own in shapes.items() if own}


def _views(flats: Mapping[str, Tensor], parts: Mapping[str, Mapping[str, torch.Size]]) -> dict[str, Tensor]:
    return {
        name: piece.view(shape)
        for flat, shapes in parts.items()
        for (name, shape), piece in zip(
            shapes.items(), flats[flat].split([shape.numel() for shape in shapes.values()]), strict=True
        )
    }


def _to_names(module: Any, state: dict[str, Any], prefix: str, _metadata: object) -> None:
    """Give a saved state the inner module's own names, so that other programs can load it, unless ZeRO 3 cut it."""
    flats = {flat: state[prefix + flat] for flat in module._parts}  # noqa: SLF001
    if all(is_zero_param(parameter) for parameter in module.parameters()):
        return
    for flat in flats:
        del state[prefix + flat]
    state.update({prefix + name: view for name, view in _views(flats, module._parts).items()})  # noqa: SLF001


def _from_names(module: Any, state: dict[str, Any], prefix: str, *_: object) -> None:
    for flat, parts in module._parts.items():  # noqa: SLF001
        pieces = [state.pop(prefix + name, None) for name in parts]
        if all(piece is not None for piece in pieces):
            state[prefix + flat] = torch.cat([piece.flatten() for piece in pieces])
