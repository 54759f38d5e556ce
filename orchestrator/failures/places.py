"""Where in a program an exception was raised, by the owners of the frames on its stack. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache

from .raised import Frame

TELLING = 3
"""Frames of an error that a person reads."""


class Place(Enum):
    """What a frame of the stack does."""

    USER = "the user's own code"
    COLLECTIVE = "communication between ranks"
    TOOLCHAIN = "compiling kernels and extensions"
    SAVING = "writing a checkpoint"
    LOADING = "reading a checkpoint or weights"
    DATA = "reading training data"
    DOWNLOAD = "the network beyond the cluster"
    SHARED_MEMORY = "memory that processes share"
    PINNING = "pinning memory of the host"
    TRACKER = "an experiment tracker"
    TEARDOWN = "clean-up after training"
    IMPORT = "importing modules"
    LIBRARY = "another library"


_FUNCTIONS = {
    Place.TEARDOWN: r"destroy_process_group|_?shutdown(?:_\w+)?|__del__|_?teardown\w*|finish|cleanup"
    r"|_run_exitfuncs|destroy|_exit_function|rotate\w*|prune\w*|_?rmtree\w*|unlink|remove(?:_\w+)?|clean\w*|close",
    Place.PINNING: r"_?pin_memory",
    Place.SAVING: r"_?save(?:_(?!for_backward)\w+)?|write_record|_legacy_save|write_checkpoint",
    Place.LOADING: r"_?load_(?:checkpoint|state|state_dict|zero|universal|file|pretrained|optimizer|model_states)\w*"
    r"|_?load_\w*(?:checkpoint|state_dict)\w*|_?load|from_pretrained|_legacy_load",
}
_FILES = {
    Place.IMPORT: r"<frozen importlib|importlib/(?:__init__|_bootstrap)",
    Place.TEARDOWN: r"/(?:atexit|weakref)\.py$",
    Place.TOOLCHAIN: (
        r"torch/(?:_inductor|_dynamo|_functorch|utils/(?:cpp_extension|_triton))|/triton/|op_builder|/ninja/"
        r"|/(?:setuptools|distutils)/"
    ),
    Place.SHARED_MEMORY: r"multiprocessing/(?:synchronize|shared_memory|heap|reductions?)\.py$",
    Place.PINNING: r"torch/utils/data/_utils/pin_memory\.py$",
    Place.TRACKER: r"/(?:wandb|mlflow|comet_ml|neptune|tensorboardX?|clearml|swanlab|aim)/",
    Place.DOWNLOAD: (
        r"/(?:huggingface_hub|requests|urllib3?|httpx|httpcore|aiohttp|http|boto3|botocore|s3fs|gcsfs"
        r"|google/cloud|hf_xet|modelscope|nltk/downloader|paramiko|xmlrpc)(?:/|\.py)|/(?:socket|ssl)\.py$"
    ),
    Place.COLLECTIVE: (
        r"torch/distributed/(?:c10d_logger|distributed_c10d|rendezvous|device_mesh|_functional_collectives|nn/"
        r"|algorithms)"
        r"|deepspeed/comm/|/mpi4py/|runtime/pipe/p2p|runtime/comm/|accelerate/utils/operations"
    ),
    Place.SAVING: r"torch/distributed/checkpoint/(?:state_dict_saver|filesystem)",
    Place.LOADING: (
        r"torch/distributed/checkpoint/|torch/serialization|/safetensors/|deepspeed/checkpoint/|checkpoint_engine"
        r"|state_dict_factory|jobs/shared/checkpoint"
    ),
    Place.DATA: (
        r"torch/utils/data/|/(?:datasets|webdataset|pyarrow|pandas|polars|h5py|PIL|torchvision/(?:io|datasets)"
        r"|torchaudio|tokenizers|sentencepiece|streaming|numpy/(?:lib|_?core/memmap)|fsspec|zarr|lmdb|tiktoken|torchcodec"
        r"|decord|yaml|ruamel|tomllib|configparser|hydra|omegaconf)(?:/|\.py)|transformers/tokenization|/(?:zipfile|gzip|tarfile|lzma|bz2|csv)\b"
    ),
}
_OF_FILE = tuple((place, re.compile(pattern)) for place, pattern in _FILES.items())
_OF_FUNCTION = tuple((place, re.compile(rf"(?:{pattern})\Z")) for place, pattern in _FUNCTIONS.items())
_LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib/python3|^<frozen|^<string>|/python3\.\d+/")
_NEVER_BY_NAME = frozenset({Place.DATA, Place.IMPORT, Place.DOWNLOAD, Place.TOOLCHAIN})
"""Whose functions `load` and `save` are not about checkpoints."""
_STDLIB_PATHS = re.compile(
    r"/(?:pathlib|shutil|os|tempfile|genericpath|posixpath|glob|contextlib|functools|typing)\b.*\.py$"
)


def places(frames: Iterable[Frame]) -> tuple[Place, ...]:
    """What the stack was doing, innermost first and each once; without what only passes calls on."""
    found: dict[Place, None] = {}
    for frame in reversed(tuple(frames)):
        for place in _of(frame.file, frame.function):
            found.setdefault(place)
    return tuple(found)


def telling(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames that say most of an error, outermost first: the innermost of the user's own, then of libraries."""
    order = sorted(range(len(frames)), key=lambda i: (not _LIBRARY.search(frames[i].file), i))
    return tuple(frames[i] for i in sorted(order[-TELLING:]))


@lru_cache(maxsize=4096)
def _of(file: str, function: str) -> tuple[Place, ...]:
    if not _LIBRARY.search(file):
        return (*_by_name(function), Place.USER)
    if _STDLIB_PATHS.search(file):  # passes on what was asked
        return tuple(_by_name(function))
    owner = next((place for place, pattern in _OF_FILE if pattern.search(file)), Place.LIBRARY)
    return (owner,) if owner in _NEVER_BY_NAME else (*_by_name(function), owner)


def _by_name(function: str) -> list[Place]:
    return [place for place, pattern in _OF_FUNCTION if pattern.match(function)]
