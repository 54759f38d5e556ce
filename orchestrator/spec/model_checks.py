"""Checks of `train.model` and its tokenizer, without loading either."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from dscampaign.jobs.shared.model_shapes import (
    BYTES,
    BYTES_VOCABULARY,
    SHAPES,
    find_shape,
    positions_of,
)
from dscampaign.orchestrator.errors import FieldPath, Finding

from .model import RunConfig, TrainConfig

_REPOSITORY: Final = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
"""A name on the hub."""
_ADDRESS: Final = re.compile(r"(?:https?://(?:\w+\.)?(?:huggingface\.co|hf\.co)/(?:datasets/|models/)?)|\w+://")


def check(config: RunConfig) -> Iterator[Finding]:
    """Everything wrong with the model of a run of the built-in training."""
    train = config.train
    if isinstance(train.model, str):
        yield from _name(train.model, train)
    elif train.model is not None:
        yield from _fields(train.model, train)
        if train.tokenizer is None:
            hint = "name it (`gpt2`, or a folder), or `bytes` for a token per byte"
            yield Finding((("train", "tokenizer"), ("train",)), "tokenizer is required: the model has none", hint)
        if train.pretrained:
            hint = "name the model that has them, or leave pretrained out"
            yield Finding((("train", "pretrained"),), "a configuration has no published weights", hint)
    inputs: dict[FieldPath, Any] = {
        ("train", "model"): train.model,
        ("train", "tokenizer"): train.tokenizer,
        ("train", "dataset", "path"): train.dataset.path if train.dataset else None,
    }
    for place, text in inputs.items():
        if isinstance(text, str) and (problem := _nameless(text)):
            yield Finding((place, place[:2]), *problem)


def _nameless(text: str) -> tuple[str, str] | None:
    """Return the problem of a text that is neither a path nor a possible name on the hub, and a hint; else None."""
    if Path(text).is_absolute() or _REPOSITORY.fullmatch(text):
        return None
    if address := _ADDRESS.match(text):
        name = _REPOSITORY.match(text[address.end() :])
        hub = "." in address[0]
        hint = f"write {name[0]}" if name and hub else "fetch it first, and write the path of the folder or file"
        return "is an address: write a name, gpt2 or OWNER/NAME", hint
    return (
        f"{text} is neither here nor a name on the hub, as gpt2 or OWNER/NAME",
        "paths start at the spec's folder",
    )


def misspelt_name(name: str) -> str | None:
    """Return the known model that a name means in another case, or without its owner."""
    if find_shape(name) or Path(name).is_dir():
        return None
    plain = name.lower()
    return next((known for known in SHAPES if plain in (known.lower(), known.lower().partition("/")[2])), None)


def _name(name: str, train: TrainConfig) -> Iterator[Finding]:
    place = ("train", "model")
    folder = Path(name)
    if (meant := misspelt_name(name)) is not None:
        yield Finding((place,), f"there is no model {name}", f'did you mean "{meant}"?')
    elif folder.is_dir() and not (folder / "config.json").exists():
        yield Finding((place,), f"the folder has no config.json: {name}", "save_pretrained() of the model writes it")
    elif _is_file(folder):
        yield Finding(
            (place,), f"is not a folder: {name}", "name the folder that save_pretrained() of the model writes"
        )
    shape = find_shape(name)
    if shape is not None and train.seq_len > (positions := positions_of(shape)):
        yield _too_long(train, f"the {positions} positions of {name}", positions)


def _is_file(path: Path) -> bool:
    return path.is_absolute() and path.exists() and not path.is_dir()


def _fields(model: Mapping[str, Any], train: TrainConfig) -> Iterator[Finding]:
    if not isinstance(model.get("model_type"), str):
        known = "write the type of the model (gpt2, llama) beside its sizes"
        yield Finding((("train", "model", "model_type"), ("train", "model")), "model_type is required", known)
    vocabulary = model.get("vocab_size")
    if train.tokenizer == BYTES and isinstance(vocabulary, int) and vocabulary < BYTES_VOCABULARY:
        message = f"vocab_size {vocabulary} is less than the {BYTES_VOCABULARY} tokens of `{BYTES}`"
        yield Finding((("train", "model", "vocab_size"),), message, "leave it out: it follows from the tokenizer")


def _too_long(train: TrainConfig, limit: str, positions: int) -> Finding:
    message = f"seq_len {train.seq_len} is more than {limit}"
    return Finding((("train", "seq_len"), ("train", "model")), message, f"use at most {positions}")
