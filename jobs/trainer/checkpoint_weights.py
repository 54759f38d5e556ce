"""Weights of a checkpoint, sharded by any engine, without a process group and without a model in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from torch import Tensor

from dscampaign.jobs.shared.layer_parts import TRANSPOSED, Cut, cut_of

from .flat_parameters import MATRICES, VECTORS
from .fsdp_engine import shards_in
from .saving import weights_only
from .torch_engine import STATE_FILE

WHOLE: Final = "mp_rank_00_model_states.pt"
"""DeepSpeed's file of all weights in the format of the training; ZeRO 3 has none. If ranks share layers, it is the
first of several files, with the weights of the first of these ranks."""

_MODEL: Final = "model."  # name of the model in the trained module


class SavedWeights:
    """The weights of a checkpoint by the model's own names, in its memory-mapped files until they are read.

    For fp32 weights of a training in half precision with ZeRO 1 or 2, DeepSpeed joins all of them in memory first.
    Raises ValueError: the files are not of this trainer, or their number of shards does not fit.
    """

    def __init__(self, folder: Path, tag: str, dtype: torch.dtype) -> None:
        with weights_only():
            self._weights = _whole(folder, tag, dtype)

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def __getitem__(self, name: str) -> Tensor:
        """Return a whole weight in the format of its file."""
        weight: Tensor = self._weights[name].contiguous()
        return weight

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Of every weight."""
        return {name: torch.Size(weight.shape) for name, weight in self._weights.items()}


def _whole(folder: Path, tag: str, dtype: torch.dtype) -> dict[str, Any]:
    count = len(list((folder / tag).glob("mp_rank_*_model_states.pt")))
    if count < 2:
        return _read(folder, tag, dtype)
    with TemporaryDirectory() as place:  # what is read from there stays in memory, or mapped into it
        parts = [_read(_alone(folder / tag, number, Path(place)), tag, dtype) for number in range(count)]
    return {name: _parts_joined(name, parts) for name in parts[0]}


def _alone(written: Path, number: int, place: Path) -> Path:
    """Make a folder with links to the files of one part, under the names that they have without other parts."""
    folder = place / str(number)
    (folder / written.name).mkdir(parents=True)
    mine = f"mp_rank_{number:02d}_"
    for file in written.iterdir():
        if mine in file.name:
            (folder / written.name / file.name.replace(mine, "mp_rank_00_")).symlink_to(file.resolve())
    return folder


def _parts_joined(name: str, parts: Sequence[Mapping[str, Any]]) -> Any:
    if (cut := cut_of(name)) is None:
        return parts[0][name]  # DeepSpeed names tied weights twice there alone
    mine = [part[name] for part in parts]
    turned = name.split(".")[-2] in TRANSPOSED and len(mine[0].shape) == 2
    return _Joined(mine, int(cut is Cut.INPUTS), pieces=3 if cut is Cut.THIRDS else 1, turned=turned)


def _read(folder: Path, tag: str, dtype: torch.dtype) -> dict[str, Any]:
    plain, whole = folder / tag / STATE_FILE, folder / tag / WHOLE
    if plain.exists():
        return _own_names(_load(plain)["module"])
    if shards := [_load(file) for file in shards_in(folder / tag)]:
        return _own_names(_rows_joined(shards))
    state = _load(whole) if whole.exists() else None
    dtypes = {weight.dtype for weight in state["module"].values() if weight.is_floating_point()} if state else set()
    if state and dtypes <= {dtype, torch.float32}:
        return _own_names(state["module"])
    if state and state["optimizer"]:
        return _own_names(_without_zero(state))
    weights = get_fp32_state_dict_from_zero_checkpoint(str(folder), tag, lazy_mode=True)
    return _own_names(_parted(weights, state) if state and MATRICES in weights else weights)


def _load(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    return loaded


class _Joined:
    """A weight of which several ranks have parts; `pieces`: weights of equal size in it, each cut by itself."""

    def __init__(self, parts: Sequence[Any], dim: int = 0, pieces: int = 1, *, turned: bool = False) -> None:
        self._parts, self._dim, self._pieces, self._turned = parts, dim, pieces, turned
        sizes = list(parts[0].shape)
        sizes[dim] = sum(part.shape[dim] for part in parts)
        self.shape = torch.Size(sizes[::-1] if turned else sizes)

    def contiguous(self) -> Tensor:
        cut = [part.contiguous().chunk(self._pieces, self._dim) for part in self._parts]
        whole = torch.cat([part for piece in zip(*cut, strict=True) for part in piece], self._dim)
        return whole.t().contiguous() if self._turned else whole


def _rows_joined(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if len(shards) != shards[0]["ranks"]:
        raise ValueError(f"the checkpoint has {len(shards)} shards of {shards[0]['ranks']}")
    weights = {name: _Joined([shard["parts"][name]["weight"] for shard in shards]) for name in shards[0]["parts"]}
    return {**shards[0]["buffers"], **weights}


def _without_zero(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The fp32 copies that half precision without ZeRO works on, in the order of the optimizer's groups."""
    buffers = {name: state["module"][name] for name in state["buffer_names"]}
    groups = state["optimizer"]["fp32_groups"]
    matrices, vectors = _by_group(state)
    if len(groups[0]) == 1 != len(matrices):
        return buffers | _parted({MATRICES: groups[0][0], VECTORS: groups[1][0]}, state)
    return buffers | dict(zip([*matrices, *vectors], [*groups[0], *groups[1]], strict=True))


def _parted(flats: Mapping[str, Tensor], state: Mapping[str, Any]) -> dict[str, Tensor]:
    parts, module = dict[str, Tensor](), state["module"]
    for names, flat in zip(_by_group(state), (flats[MATRICES], flats[VECTORS]), strict=True):
        pieces = flat.flatten().split([module[name].numel() for name in names])
        parts |= {name: piece.view(module[name].shape) for name, piece in zip(names, pieces, strict=True)}
    return parts


def _by_group(state: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Names of the matrices and of all others, as the optimizer has them; of tied weights, the first name."""
    module = {name: weight for name, weight in state["module"].items() if name not in state["buffer_names"]}
    first = {(weight.data_ptr(), weight.shape): name for name, weight in reversed(module.items())}
    names = [name for name, weight in module.items() if first[weight.data_ptr(), weight.shape] == name]
    return [name for name in names if module[name].dim() >= 2], [name for name in names if module[name].dim() < 2]


def _own_names(module: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(_MODEL): weight for name, weight in module.items()}
