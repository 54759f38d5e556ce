"""What is wrong with `train.model` and its tokenizer, as far as it is known without loading either."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Final

from dscampaign.jobs.shared.model_shapes import (
    ATTENTION_FLAGS,
    BYTES,
    BYTES_VOCABULARY,
    SHAPES,
    find_shape,
    positions_of,
)
from dscampaign.orchestrator.errors import FieldPath, Finding, did_you_mean, nearest

from . import transformers_source
from .model import RunConfig, TrainConfig
from .transformers_source import ConfigClass

_NO_NAMES_OF_OURS: Final = frozenset({"distilgpt2", "openai-gpt"})
"""Names of the hub without an owner that resemble known ones."""
_TOKENIZER_FILES: Final = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tekken.json", "merges.txt")
_ALIKE: Final = 0.75
_WHOLLY_ROTARY: Final = frozenset({"llama", "mistral", "mixtral", "olmo2", "qwen2"})
_SAME: Final = (
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers", "depth"),
    ("num_attention_heads", "n_head", "n_heads", "num_heads", "heads"),
    ("num_key_value_heads", "n_kv_heads", "num_kv_heads", "kv_heads"),
    ("hidden_size", "n_embd", "d_model", "hidden_dim", "embed_dim", "n_embed", "dim", "width"),
    ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "mlp_dim"),
    ("max_position_embeddings", "n_positions", "n_ctx", "block_size", "max_seq_len", "context_length"),
)
"""Words of different models, and papers, for one size."""
_AT_LEAST_ONE: Final = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
_REPOSITORY: Final = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
"""A name on the hub."""
_ADDRESS: Final = re.compile(r"(?:https?://(?:\w+\.)?(?:huggingface\.co|hf\.co)/(?:datasets/|models/)?)|\w+://")


_OFF_ON: Final = (False, True, "auto")


def check(config: RunConfig) -> Iterator[Finding]:
    """Everything wrong with the model of a run of the built-in training."""
    train = config.train
    if isinstance(train.model, str):
        yield from _name(train.model, train)
    elif train.model is not None:
        yield from _fields(train.model, config)
        if train.tokenizer is None:
            hint = "name one (`gpt2`, or a folder), or `bytes` for one token per byte"
            yield Finding((("train", "tokenizer"), ("train",)), "tokenizer is required: the model has none", hint)
        if train.pretrained:
            hint = "name the model that has them, or leave pretrained out"
            yield Finding((("train", "pretrained"),), "a configuration has no published weights", hint)
    if train.tokenizer is not None:
        yield from _tokenizer(train.tokenizer)
    inputs: dict[FieldPath, Any] = {
        ("train", "model"): train.model,
        ("train", "tokenizer"): train.tokenizer,
        ("train", "dataset", "path"): train.dataset.path if train.dataset else None,
    }
    for place, text in inputs.items():
        if isinstance(text, str) and (problem := _nameless(text)):
            yield Finding((place, place[:2]), *problem)


def _nameless(text: str) -> tuple[str, str] | None:
    """What is wrong with what is neither a path nor can be a name on the hub, and a hint; None where nothing is."""
    if Path(text).is_absolute() or _REPOSITORY.fullmatch(text):
        return None
    if address := _ADDRESS.match(text):
        name = _REPOSITORY.match(text[address.end() :])
        hub = "." in address[0]
        hint = f"write {name[0]}" if name and hub else "fetch it first, and write the path of the folder or file"
        return "is an address: the hub is asked for names, such as gpt2 or OWNER/NAME", hint
    return (
        f"{text} is neither here nor a name on the hub, such as gpt2 or OWNER/NAME",
        "paths start at the spec's folder",
    )


def misspelt_name(name: str) -> str | None:
    """The known model that a name is surely meant to be; None for what may well be a name of the hub's."""
    if name in _NO_NAMES_OF_OURS or find_shape(name) or Path(name).is_dir():
        return None
    for known in SHAPES:
        if known.lower() == name.lower() or known.partition("/")[2] == name:
            return known
    numbers = re.findall(r"\d+", name)
    owned = "/" in name  # a new name on the hub must have an owner: one without is old, or misspelt
    for known in SHAPES:
        alike = SequenceMatcher(None, name, known).ratio() >= (0.9 if owned else _ALIKE)
        grown = name.startswith(known) or known.startswith(name)
        if re.findall(r"\d+", known) == numbers and (alike or sorted(known) == sorted(name)) and not grown:
            return known
    return None


def _name(name: str, train: TrainConfig) -> Iterator[Finding]:
    place = ("train", "model")
    folder = Path(name)
    if (meant := misspelt_name(name)) is not None:
        yield Finding((place,), f"there is no model {name}", f'did you mean "{meant}"?')
    elif folder.is_dir() and not (folder / "config.json").exists():
        yield Finding((place,), f"the folder has no config.json: {name}", "save_pretrained() of the model writes one")
    elif folder.is_dir() and train.tokenizer is None and not _has_tokenizer(folder):
        hint = "name one as train.tokenizer (`bytes` needs no files), or save it into the folder"
        yield Finding((("train", "tokenizer"), place), f"the model's folder has no tokenizer: {name}", hint)
    elif _is_file(folder):
        yield Finding((place,), f"is no folder: {name}", "name the folder that save_pretrained() of the model writes")
    shape = find_shape(name)
    if shape is not None and train.seq_len > (positions := positions_of(shape)):
        yield _too_long(train, f"the {positions} positions of {name}", positions)


def _tokenizer(name: str) -> Iterator[Finding]:
    place, folder = ("train", "tokenizer"), Path(name)
    if folder.is_dir() and not _has_tokenizer(folder):
        yield Finding((place,), f"the folder has no tokenizer: {name}", "save_pretrained() of the tokenizer writes one")
    elif _is_file(folder):
        yield Finding(
            (place,), f"is no folder: {name}", "name the folder that save_pretrained() of the tokenizer writes"
        )
    elif name != BYTES and not folder.exists() and nearest(name, (BYTES,), 0.8):
        yield Finding((place,), f"there is no tokenizer {name}", f'did you mean "{BYTES}"?')
    elif (meant := misspelt_name(name)) is not None:
        yield Finding((place,), f"there is no tokenizer {name}", f'did you mean "{meant}"?')


def _is_file(path: Path) -> bool:
    return path.is_absolute() and path.exists() and not path.is_dir()


def _has_tokenizer(folder: Path) -> bool:
    return any(True for pattern in _TOKENIZER_FILES for _ in folder.glob(pattern))


def _fields(model: Mapping[str, Any], config: RunConfig) -> Iterator[Finding]:
    package, kind = transformers_source.package_of(config.python), model.get("model_type")
    if not isinstance(kind, str):
        known = "write the type of the model, such as gpt2 or llama, beside its sizes"
        yield Finding((("train", "model", "model_type"), ("train", "model")), "model_type is required", known)
        return
    if package is None:
        return
    types, causal = transformers_source.model_types(package), transformers_source.causal_types(package)
    if types and kind not in types:
        hint = did_you_mean(kind, causal or types, "`campaign doctor --on-node` tells which version the nodes have")
        yield Finding((("train", "model", "model_type"),), f"Transformers has no model type {kind}", hint)
    elif causal and kind not in causal:
        hint = "use one such as gpt2, llama, qwen2 or mistral"
        yield Finding((("train", "model", "model_type"),), f"{kind} is no causal language model", hint)
    else:
        yield from _attention(config.train.attention, kind, package)
        if known_class := transformers_source.config_class(package, kind):
            yield from _misspelt(model, kind, known_class)
            wrong = list(_wrong_numbers(model, known_class))
            yield from wrong or _sizes(model, known_class, config.train)


def _attention(given: str, kind: str, package: Path) -> Iterator[Finding]:
    """A finding where Transformers would refuse to build the model with this attention."""
    flag = ATTENTION_FLAGS.get(given)
    if flag and transformers_source.says(package, kind, flag) is False:
        places: tuple[FieldPath, ...] = (("train", "attention"), ("train", "model"))
        message = f"Transformers has no {given} for {kind}"
        yield Finding(places, message, "write auto, which takes what the model has")


def _misspelt(model: Mapping[str, Any], kind: str, known: ConfigClass) -> Iterator[Finding]:
    """Fields that Transformers would ignore. One that is like none of its own may be what a newer version knows."""
    for name in model:
        meant = None if name in known.names or name.startswith("_") else _meant(name, known)
        if meant is not None:
            places = (("train", "model", name), ("train", "model", meant))
            message = f"is no field of {kind}, which would ignore it"
            yield Finding(places, message, f'did you mean "{meant}"?', at_key=True)


def _meant(name: str, known: ConfigClass) -> str | None:
    """The field that a name is meant to be, in the class's own word: `num_layers` of gpt2 is `n_layer`."""
    own = [*known.defaults, *known.aliases]
    plain = name.lower().replace("-", "_")
    same = next((names for names in _SAME if plain in names), ())
    meant = next((other for other in same if other in own), None) or nearest(plain, own, _ALIKE)
    return known.aliases.get(meant, meant) if meant else None


def _wrong_numbers(model: Mapping[str, Any], known: ConfigClass) -> Iterator[Finding]:
    counts = {known.aliases.get(name, name) for name in _AT_LEAST_ONE}
    for name, value in model.items():
        own = known.aliases.get(name, name)
        if own in known.whole and isinstance(value, bool | str | float) and value != "auto":
            yield Finding((("train", "model", name),), "expected a whole number")
        elif own in counts and isinstance(value, int) and value < 1:
            yield Finding((("train", "model", name),), "expected at least 1")
        elif (
            isinstance(known.defaults.get(own), bool) and isinstance(value, str | int | float) and value not in _OFF_ON
        ):
            yield Finding((("train", "model", name),), "expected true or false")


def _sizes(model: Mapping[str, Any], known: ConfigClass, train: TrainConfig) -> Iterator[Finding]:
    given = {**known.defaults, **known.canonical(model)}
    written = {known.aliases.get(name, name): name for name in model}

    def size(name: str) -> tuple[str, int | None]:
        """What a size is called here, and its value."""
        own = known.aliases.get(name, name)
        value = given.get(own)
        whole = isinstance(value, int) and not isinstance(value, bool)
        return written.get(own, own), value if whole and value else None

    width_name, width = size("hidden_size")
    heads_name, heads = size("num_attention_heads")
    groups_name, groups = size("num_key_value_heads")
    if width and heads and _splits_width(given):
        places = (("train", "model", width_name), ("train", "model", heads_name), ("train", "model"))
        if width % heads:
            less, more = width // heads * heads, (width // heads + 1) * heads
            hint = f"use {width_name} {f'{less} or ' if less else ''}{more}, or another {heads_name}"
            yield Finding(places, f"{width_name} {width} is not divisible by {heads_name} {heads}", hint)
        elif (width // heads) % 2 and model["model_type"] in _WHOLLY_ROTARY:
            message = f"{width_name} {width} gives each of {heads} heads {width // heads} numbers"
            yield Finding(places, message, "rotary positions need an even number of them")
    if heads and groups and heads % groups and groups_name in model:
        both = (("train", "model", groups_name), ("train", "model", heads_name))
        message = f"{heads_name} {heads} is not divisible by {groups_name} {groups}"
        yield Finding(both, message, "each key and value head serves equally many heads")
    positions_name, positions = size("max_position_embeddings")
    if positions and train.seq_len > positions:
        yield _too_long(train, f"the model's {positions_name} {positions}", positions)
    vocabulary = model.get("vocab_size")
    if train.tokenizer == BYTES and isinstance(vocabulary, int) and vocabulary < BYTES_VOCABULARY:
        message = f"vocab_size {vocabulary} is less than the {BYTES_VOCABULARY} tokens of `{BYTES}`"
        yield Finding((("train", "model", "vocab_size"),), message, "leave it out: it follows from the tokenizer")


def _splits_width(given: Mapping[str, Any]) -> bool:
    """Whether the width of a head follows from the model's: some types give it by itself."""
    own = [
        name for name in given if name not in ("head_dim", "hidden_size") and re.search(r"head_(dim|size)|^d_kv", name)
    ]
    return not own and not isinstance(given.get("head_dim"), int)


def _too_long(train: TrainConfig, limit: str, positions: int) -> Finding:
    message = f"seq_len {train.seq_len} is more than {limit}"
    return Finding((("train", "seq_len"), ("train", "model")), message, f"use at most {positions}")
