"""Where in a program an exception was raised, by the owners of the frames on its stack. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache

from .raised import Frame

TELLING = 3
"""Frames of an error that a person reads."""


def _place(files: str, functions: str = "") -> tuple[str, str]:
    return files, functions


class Place(Enum):
    """The activity of a frame: patterns of its file in a library, and of its function anywhere."""

    USER = "user", ""
    TEARDOWN = _place(
        r"/(?:atexit|weakref)\.py$",
        r"destroy_process_group|_?shutdown(?:_\w+)?|__del__|_?teardown\w*|finish|cleanup|_run_exitfuncs|destroy"
        r"|_exit_function|rotate\w*|prune\w*|_?rmtree\w*|unlink|remove(?:_\w+)?|clean\w*|close",
    )
    SHARED_MEMORY = _place(r"multiprocessing/(?:synchronize|shared_memory|heap|reductions?)\.py$")
    TRACKER = _place(r"/(?:wandb|mlflow|comet_ml|neptune|tensorboardX?|clearml|swanlab|aim)/")
    COLLECTIVE = _place(
        r"torch/distributed/(?:c10d_logger|distributed_c10d|rendezvous|device_mesh|_functional_collectives|nn/"
        r"|algorithms)|deepspeed/comm/|/mpi4py/|runtime/pipe/p2p|runtime/comm/|accelerate/utils/operations"
    )
    SAVING = _place(
        r"torch/distributed/checkpoint/(?:state_dict_saver|filesystem)",
        r"_?save(?:_(?!for_backward)\w+)?|write_record|_legacy_save|write_checkpoint",
    )
    LOADING = _place(
        r"torch/distributed/checkpoint/|torch/serialization|/safetensors/|deepspeed/checkpoint/|checkpoint_engine"
        r"|state_dict_factory|jobs/shared/checkpoint",
        r"_?load_(?:checkpoint|state|state_dict|zero|universal|file|pretrained|optimizer|model_states)\w*"
        r"|_?load_\w*(?:checkpoint|state_dict)\w*|_?load|from_pretrained|_legacy_load",
    )
    DATA = _place(
        r"torch/utils/data/|/(?:datasets|webdataset|pyarrow|pandas|polars|h5py|PIL|torchvision/(?:io|datasets)"
        r"|torchaudio|tokenizers|sentencepiece|streaming|numpy/(?:lib|_?core/memmap)|fsspec|zarr|lmdb|tiktoken"
        r"|torchcodec|decord|yaml|ruamel|tomllib|configparser|hydra|omegaconf)(?:/|\.py)|transformers/tokenization"
        r"|/(?:zipfile|gzip|tarfile|lzma|bz2|csv)\b"
    )
    LIBRARY = "library", ""


_PATTERNS = {
    place: (re.compile(place.value[0]), re.compile(rf"(?:{place.value[1] or '(?!)'})\Z"))
    for place in Place
    if place not in (Place.USER, Place.LIBRARY)
}
_LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib/python3|^<frozen|^<string>|/python3\.\d+/")
_NEVER_BY_NAME = frozenset({Place.DATA})
"""Owners of functions `load` and `save` that are not about checkpoints."""
_PASSES_ON = re.compile(
    r"<frozen|/(?:importlib|pathlib|shutil|os|tempfile|genericpath|posixpath|glob|contextlib|functools|typing)\b.*\.py$"
)


def places(frames: Iterable[Frame]) -> tuple[Place, ...]:
    """Return the activities of a stack, innermost first and each once; without frames that only pass calls on."""
    return tuple(dict.fromkeys(place for frame in reversed(tuple(frames)) for place in _of(frame.file, frame.function)))


def telling(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the frames that show most of an error, outermost first: the innermost of the user's own, then others."""
    order = sorted(range(len(frames)), key=lambda i: (not _LIBRARY.search(frames[i].file), i))
    return tuple(frames[i] for i in sorted(order[-TELLING:]))


@lru_cache(maxsize=4096)
def _of(file: str, function: str) -> tuple[Place, ...]:
    by_name = tuple(place for place, (_, pattern) in _PATTERNS.items() if pattern.match(function))
    if not _LIBRARY.search(file):
        return (*by_name, Place.USER)
    if _PASSES_ON.search(file):
        return by_name
    owner = next((place for place, (pattern, _) in _PATTERNS.items() if pattern.search(file)), Place.LIBRARY)
    return (owner,) if owner in _NEVER_BY_NAME else (*by_name, owner)
