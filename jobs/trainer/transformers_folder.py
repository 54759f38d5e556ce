"""Writes the weights of a checkpoint, sharded by any engine, in the format of Transformers, on a CPU.

As a program it reads a `WeightsRequest` as JSON from its standard input, and ends with a line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from dscampaign.jobs.shared.documents import decode
from dscampaign.jobs.shared.layer_parts import TRANSPOSED, Cut, cut_of

from .config import TrainerConfig
from .data import tokenizer_name
from .flat_parameters import MATRICES, VECTORS, part
from .model import find_model_config
from .saving import TAG, weights_only
from .tokens import load_tokenizer, save_tokenizer
from .torch_engine import STATE_FILE, shards_in

FORMATS: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FILE_SIZE: Final = "4GB"  # of weights: a size that all hubs and file systems accept
WHOLE: Final = "mp_rank_00_model_states.pt"
"""DeepSpeed's file of all weights in the format of the training; ZeRO 3 has none. If ranks share layers, it is the
first of several files, with the weights of the first of these ranks."""


@dataclass(frozen=True)
class WeightsRequest:
    """A request for the weights of a checkpoint of a train.json, into an empty folder, in a format of ``FORMATS``."""

    checkpoint: str
    train: Mapping[str, Any]
    out: str
    dtype: str


def write(request: WeightsRequest) -> dict[str, Any]:
    """Write configuration, weights, tokenizer; return parameters, class and tokenizer. Raises ValueError, OSError."""
    config, out = TrainerConfig.from_json(json.dumps(dict(request.train))), Path(request.out)
    name, dtype = tokenizer_name(config), FORMATS[request.dtype]
    model_config = find_model_config(config, load_tokenizer(name))
    with torch.device("meta"):  # its shapes and names alone
        model: PreTrainedModel = AutoModelForCausalLM.from_config(model_config, dtype=dtype)
    with weights_only():
        weights = part_blocks(read_weights(Path(request.checkpoint), TAG, dtype), model)
    state = {}
    for key, wanted in _wanted(model, weights).items():
        weight = weights[key].contiguous()
        weight = weight[: wanted.shape[0]] if wanted.dim() else weight
        state[key] = weight.to(wanted.dtype if weight.is_floating_point() else weight.dtype, copy=True)
    model.save_pretrained(str(out), state_dict=state, max_shard_size=FILE_SIZE)
    save_tokenizer(name, out)
    parameters = sum(weight.numel() for weight in model.parameters())
    return {"parameters": parameters, "model": type(model).__name__, "tokenizer": name}


def _wanted(model: PreTrainedModel, saved: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the model's weights by name, tied weights once. Raises ValueError: the names or shapes differ."""
    wanted = dict(model.named_parameters()) | {
        name: buffer for name, buffer in model.state_dict().items() if name in dict(model.named_buffers())
    }
    rows = model.config.vocab_size
    if missing := [name for name in wanted if name not in saved]:
        raise ValueError(f"the checkpoint has no weight {missing[0]}, which the model of the run has")
    for name, weight in wanted.items():
        shape = saved[name].shape
        padded = weight.shape[:1] == (rows,) and shape[0] > rows
        if shape[padded:] != weight.shape[padded:]:
            shapes = f"{tuple(shape)} in the checkpoint, {tuple(weight.shape)} in the model of the run"
            raise ValueError(f"weight {name}: {shapes}")
    if more := saved.keys() - model.state_dict().keys():
        raise ValueError(f"the checkpoint has a weight {min(more)}, which the model of the run has not")
    return wanted


def read_weights(folder: Path, tag: str, dtype: torch.dtype) -> dict[str, Any]:
    """Return the weights of a checkpoint by the model's own names; some are joined only by ``contiguous()``.

    Raises ValueError: the files are not of this trainer, or their number of shards does not fit.
    """
    count = len(list((folder / tag).glob("mp_rank_*_model_states.pt")))
    if count < 2:
        weights = _read(folder, tag, dtype)
    else:
        with TemporaryDirectory() as place:  # what is read from there stays in memory, or mapped into it
            parts = [_read(_alone(folder / tag, number, Path(place)), tag, dtype) for number in range(count)]
        weights = {name: _parts_joined(name, parts) for name in parts[0]}
    return {name.removeprefix("model."): weight for name, weight in weights.items()}  # of the trained module


def part_blocks(weights: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return the weights with the joined parameters of blocks parted, by the shapes of the model."""
    for name in [name for name in weights if name.endswith(f".{MATRICES}")]:
        block = name.removesuffix(f".{MATRICES}")
        kinds = [flat for flat in (MATRICES, VECTORS) if f"{block}.{flat}" in weights]
        flats = {flat: weights.pop(f"{block}.{flat}").contiguous().flatten() for flat in kinds}
        weights |= {f"{block}.{own}": weight for own, weight in part(flats, model.get_submodule(block)).items()}
    return weights


def _alone(written: Path, number: int, place: Path) -> Path:
    """Make a folder with links to the files of one part, under the names that they have without other parts."""
    folder = place / str(number)
    (folder / written.name).mkdir(parents=True)
    mine = f"mp_rank_{number:02d}_"
    for file in written.iterdir():
        if mine in file.name:
            (folder / written.name / file.name.replace(mine, "mp_rank_00_")).symlink_to(file.resolve())
    return folder


def _parts_joined(name: str, parts: Sequence[Mapping[str, Any]]) -> Tensor:
    cut = cut_of(name)
    own: Tensor = parts[0][name].contiguous()
    if cut is None:
        return own  # DeepSpeed names tied weights twice there alone
    dim, pieces = int(cut is Cut.INPUTS), 3 if cut is Cut.THIRDS else 1
    mine = [part[name].contiguous().chunk(pieces, dim) for part in parts]
    whole = torch.cat([part for piece in zip(*mine, strict=True) for part in piece], dim)
    return whole.t() if name.split(".")[-2] in TRANSPOSED and own.dim() == 2 else whole


def _read(folder: Path, tag: str, dtype: torch.dtype) -> dict[str, Any]:
    plain, whole = folder / tag / STATE_FILE, folder / tag / WHOLE
    if plain.exists():
        return dict(_load(plain)["module"])
    if shards := [_load(file) for file in shards_in(folder / tag)]:
        if len(shards) != shards[0]["ranks"]:
            raise ValueError(f"the checkpoint has {len(shards)} shards of {shards[0]['ranks']}")
        parts = [shard["parts"] for shard in shards]
        joined = {name: torch.cat([part[name]["weight"] for part in parts]) for name in parts[0]}
        return {**shards[0]["buffers"], **joined}
    state = _load(whole) if whole.exists() else {"module": {}, "optimizer": None}
    dtypes = {weight.dtype for weight in state["module"].values() if weight.is_floating_point()}
    if state["module"] and dtypes <= {dtype, torch.float32}:
        return dict(state["module"])
    if state["optimizer"]:
        return _without_zero(state)
    weights: dict[str, Any] = get_fp32_state_dict_from_zero_checkpoint(str(folder), tag, lazy_mode=True)
    return _parted(weights, state) if state["module"] and MATRICES in weights else weights


def _load(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    return loaded


def _without_zero(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The fp32 copies that half precision without ZeRO works on, in the order of the optimizer's groups."""
    buffers = {name: state["module"][name] for name in state["buffer_names"]}
    groups = state["optimizer"]["fp32_groups"]
    matrices, vectors = _by_group(state)
    if len(groups[0]) == 1 != len(matrices):
        flats = {flat: group[0] for flat, group in zip((MATRICES, VECTORS), groups, strict=False)}
        return buffers | _parted(flats, state)
    return buffers | dict(zip([*matrices, *vectors], chain.from_iterable(groups), strict=True))


def _parted(flats: Mapping[str, Tensor], state: Mapping[str, Any]) -> dict[str, Tensor]:
    parts, module = dict[str, Tensor](), state["module"]
    for names, flat in zip(_by_group(state), (MATRICES, VECTORS), strict=True):
        if not names:
            continue
        pieces = flats[flat].flatten().split([module[name].numel() for name in names])
        parts |= {name: piece.view(module[name].shape) for name, piece in zip(names, pieces, strict=True)}
    return parts


def _by_group(state: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Names of the matrices and of all others, as the optimizer has them; of tied weights, the first name."""
    module = {name: weight for name, weight in state["module"].items() if name not in state["buffer_names"]}
    first = {(weight.data_ptr(), weight.shape): name for name, weight in reversed(module.items())}
    names = [name for name, weight in module.items() if first[weight.data_ptr(), weight.shape] == name]
    return [name for name in names if module[name].dim() >= 2], [name for name in names if module[name].dim() < 2]


def main() -> None:
    """Serve the request on standard input."""
    logging.set_verbosity_error()
    with redirect_stdout(sys.stderr):
        done = write(decode(WeightsRequest, json.load(sys.stdin)))
    print(json.dumps(done))  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
