"""Prepared tokens: each text is tokenised once, into a memory-mapped file that all runs share.

Documents are joined, each ended by the end-of-text token, and cut into samples of ``seq_len`` inputs and as many
targets (the input a token later). With `packing: false` each document is a sample, cut or filled up.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dscampaign.files import ours
from dscampaign.files.atomic_files import alone, sync_dir, write_atomically
from dscampaign.files.ownership import distrust, distrust_tree
from dscampaign.files.private_files import make_folder, open_private

from .config import TrainerConfig, TrainerDataset
from .corpus import Corpus
from .tokens import Tokenizer, load_tokenizer, tokenizer_identity

Indices = NDArray[np.int64]

FORMAT = 1
CHARS_PER_CALL = 1 << 22
POLL_S = 0.2
LEFT_S = 3600.0
"""A draft that has not grown for so long is nobody's any more; without locks two may be at work on the same text."""


@dataclass(frozen=True)
class Samples:
    """A stretch of tokens as samples of ``seq_len`` inputs with their targets; padded, the last input has no target."""

    tokens: NDArray[np.integer[Any]]
    seq_len: int
    padded: bool = False

    def __len__(self) -> int:
        return max(0, len(self.tokens) - (not self.padded)) // self.seq_len

    def read(self, indices: Indices) -> NDArray[np.int64]:
        """Return tokens of samples, shape (len(indices), seq_len + 1); if padded, the last target has no meaning."""
        positions = indices[:, None] * self.seq_len + np.arange(self.seq_len + (not self.padded))
        tokens: NDArray[np.int64] = self.tokens[positions].astype(np.int64)
        return np.pad(tokens, ((0, 0), (0, int(self.padded))))


@dataclass(frozen=True)
class Data:
    """The training and held-out samples of a run, and their vocabulary."""

    train: Samples
    held_out: Samples
    vocab_size: int
    eos: int


@dataclass(frozen=True)
class _Meta:
    dtype: str
    token_count: int
    vocab_size: int
    eos: int


def load(
    config: TrainerConfig, data_dir: Path, *, prepare: bool, share: Callable[[list[str]], list[str]] = list
) -> Data:
    """Open the run's prepared data.

    The first rank prepares missing text and names the folders with `share`, which broadcasts: nodes may see other times
    of the same files, or miss them.

    Raises:
        ValueError: the text is too short for one batch, or held out and trained on, or the model names no tokenizer.
        Distrusted: somebody else can have written the prepared tokens.
    """
    tokenizer = tokenizer_name(config)
    padded = not config.dataset.packing
    corpora = _corpora(config.dataset, config.seq_len if padded else None)
    if prepare:
        _require_apart(corpora)
    names = share([_name(corpus, tokenizer) for corpus in corpora] if prepare else [])
    if prepare:
        for name, corpus in zip(names, corpora, strict=True):
            prepare_tokens(corpus, tokenizer, data_dir, name)
    streams = [_open(data_dir / name, corpus.path) for name, corpus in zip(names, corpora, strict=True)]
    meta, tokens = streams[0]
    if len(streams) == 2:
        train, held_out = tokens, streams[1][1]
    else:
        cut = len(tokens) - round(len(tokens) * config.dataset.eval_fraction)
        cut -= cut % config.seq_len if padded else 0
        train, held_out = tokens[:cut], tokens[cut:]
    trained, rated = (Samples(part, config.seq_len, padded) for part in (train, held_out))
    for kind, part, corpus in zip(("training", "held-out"), (trained, rated), corpora, strict=False):
        if not len(part):
            raise ValueError(f"{corpus.path}: {len(part.tokens)} {kind} tokens, a sample has {config.seq_len + 1}")
    return Data(trained, rated, meta.vocab_size, meta.eos)


def prepare_tokens(corpus: Corpus, tokenizer: str, data_dir: Path, name: str = "") -> Path:
    """Return the complete folder of the corpus's tokens, of a known name or its own; make it if it is missing.

    Without locks of the file system processes work side by side, and still none sees half a folder.
    """
    folder = data_dir / (name or _name(corpus, tokenizer))
    if not folder.exists():
        make_folder(data_dir, closed=True)
        if doubt := distrust(data_dir, data_dir.parent):
            raise doubt
        lock = folder.with_name(f"{folder.name}.lock")
        with alone(lock):
            if not folder.exists():
                _remove_left(folder, lock.stat().st_mtime)
                _make(folder, corpus, load_tokenizer(tokenizer))
    return folder


def tokenizer_name(config: TrainerConfig) -> str:
    """Return the argument of `load_tokenizer`; raise ValueError if neither the model nor the spec has a tokenizer."""
    if config.tokenizer is None and not isinstance(config.model, str):
        raise ValueError("train.tokenizer: the model has none of its own; name a tokenizer, or 'bytes'")
    return config.tokenizer or str(config.model)


def _corpora(dataset: TrainerDataset, pad_to: int | None) -> list[Corpus]:
    main = Corpus(dataset.path, dataset.name, dataset.split, dataset.text_field, pad_to, dataset.max_tokens)
    if dataset.eval_path is None and dataset.eval_split is None:
        return [main]
    if dataset.eval_path is None:  # without a split, the files of a folder are all of its splits
        main = replace(main, split=dataset.split or "train")
    return [main, replace(main, path=dataset.eval_path or dataset.path, split=dataset.eval_split)]


def _require_apart(corpora: Sequence[Corpus]) -> None:
    """Raise ValueError if part of the held-out text would be trained on, unless the spec gives both the same text."""
    if len(set(corpora)) < 2:
        return
    trained, held_out = (corpus.stretches() for corpus in corpora)
    both = {
        file
        for file, first, past in trained
        for other, begin, end in held_out
        if first < end
        and begin < past
        and (file == other or (file.exists() and other.exists() and file.samefile(other)))
    }
    if both:
        ways = "name other files or slices, or use train.dataset.eval_fraction"
        raise ValueError(f"train.dataset: {min(both)} would be trained on and held out; {ways}")


def _open(folder: Path, source: str) -> tuple[_Meta, NDArray[np.integer[Any]]]:
    while not folder.exists():  # the launcher ends this rank if the one that prepares fails
        time.sleep(POLL_S)
    if doubt := distrust_tree(folder, folder.parents[1]):  # anybody can calculate its name
        raise doubt
    meta = _Meta(**json.loads((folder / "meta.json").read_text()))
    if not meta.token_count:
        raise ValueError(f"{source}: no text")
    return meta, np.memmap(folder / "tokens.bin", dtype=meta.dtype, mode="r", shape=(meta.token_count,))


def _name(corpus: Corpus, tokenizer: str) -> str:
    identity = json.dumps([FORMAT, corpus.identity(), tokenizer_identity(tokenizer)])
    return hashlib.sha256(identity.encode()).hexdigest()[:24]


def _remove_left(folder: Path, now_s: float) -> None:
    for draft in ours.named(folder.parent, re.compile(rf"\.{re.escape(folder.name)}\.[0-9a-f]{{8}}")):
        newest_s = max((path.stat().st_mtime for path in (draft, *draft.glob("*"))), default=now_s)
        if now_s - newest_s > LEFT_S:
            ours.remove(draft)


def _make(folder: Path, corpus: Corpus, tokenizer: Tokenizer) -> None:
    draft = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    make_folder(draft)
    try:
        dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
        with open(draft / "tokens.bin", "wb", opener=open_private) as file:
            count = 0
            for ids in _token_ids(corpus, tokenizer):
                room = sys.maxsize if corpus.max_tokens is None else corpus.max_tokens - count
                room -= room % (corpus.pad_to or 1)
                file.write(np.asarray(ids[:room], dtype=dtype).tobytes())
                count += len(ids[:room])
                if len(ids) >= room:
                    break
            file.flush()
            os.fsync(file.fileno())
        meta = _Meta(dtype, count, tokenizer.vocab_size, tokenizer.eos)
        write_atomically(draft / "meta.json", json.dumps(asdict(meta)))
        try:
            draft.rename(folder)
        except OSError:
            if not folder.exists():  # else another was first; its tokens are the same
                raise
        sync_dir(folder.parent)
    finally:
        ours.remove(draft)


def _token_ids(corpus: Corpus, tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Ids of piece after piece, with the end-of-text id after each document, or up to the end of its sample."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    for group in _groups(corpus):
        for ids, (_, last) in zip(tokenizer.encode([text for text, _ in group], corpus.pad_to), group, strict=True):
            ends = corpus.pad_to - len(ids) if corpus.pad_to else int(last)
            yield [*ids, *[tokenizer.eos] * ends]


def _groups(corpus: Corpus) -> Iterator[list[tuple[str, bool]]]:
    """Yield pieces of text, each with whether it ends its document."""
    group, chars = list[tuple[str, bool]](), 0
    for document in corpus.documents():
        text: str | None = next(document, "")
        following = next(document, None)
        while text is not None:
            group.append((text, following is None))
            chars += len(text)
            if chars >= CHARS_PER_CALL:
                yield group
                group, chars = [], 0
            text, following = following, next(document, None)
    if group:
        yield group
