"""Tokenizers, reduced to the needs of samples: text to ids, the id between documents, the size of the vocabulary."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dscampaign.jobs.shared.model_shapes import BYTES, BYTES_VOCABULARY

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

END = "<|endoftext|>"  # Transformers' name for the id that ends a document of bytes


def load_tokenizer(name: str) -> Tokenizer:
    """Load ``bytes``, a local folder or a hub name. Raises OSError: there is none; ValueError: no token ends a text."""
    return ByteTokenizer() if name == BYTES else HubTokenizer(_from_transformers(name))


def save_tokenizer(name: str, folder: Path) -> None:
    """Write it in the format of Transformers; ``bytes`` too, with the same ids. Raises OSError as `load_tokenizer`."""
    tokenizer = _bytes_for_transformers() if name == BYTES else _from_transformers(name)
    tokenizer.save_pretrained(str(folder))


def tokenizer_identity(name: str) -> str:
    """Return the identity of a tokenizer: the content of its local files, else its name."""
    digest = hashlib.sha256()
    for file in sorted(Path(name).glob("*")) if Path(name).is_dir() else ():
        if file.suffix in (".json", ".txt", ".model"):
            digest.update(file.name.encode() + file.read_bytes())
    return f"{name if name == BYTES or not Path(name).is_dir() else 'local'}:{digest.hexdigest()}"


@dataclass(frozen=True)
class ByteTokenizer:
    """UTF-8 bytes as ids, and an id for the end of a document. Needs no files."""

    vocab_size: int = BYTES_VOCABULARY
    eos: int = 256

    def encode(self, texts: list[str], most: int | None = None) -> list[list[int]]:
        """Return the ids of each text: without special tokens, or if `most`, with them and so many at most."""
        return [list(text.encode()[:most]) for text in texts]


class HubTokenizer:
    """A tokenizer of the Transformers library, with the members of ``ByteTokenizer``."""

    def __init__(self, inner: PreTrainedTokenizerBase) -> None:
        eos: int | None = inner.eos_token_id if inner.eos_token_id is not None else inner.sep_token_id
        if eos is None:
            raise ValueError(f"tokenizer {inner.name_or_path}: no end-of-text token to put between documents")
        inner.model_max_length = 1 << 62  # no document is too long, and no warning is due
        self._inner = inner
        self.eos = eos
        self.vocab_size = len(inner)

    def encode(self, texts: list[str], most: int | None = None) -> list[list[int]]:
        """Return the ids of each text, as `ByteTokenizer` does."""
        cut = {"truncation": True, "max_length": most} if most else {"add_special_tokens": False}
        return list(self._inner(texts, **cut, return_attention_mask=False)["input_ids"])


Tokenizer = ByteTokenizer | HubTokenizer


def _bytes_for_transformers() -> PreTrainedTokenizerBase:
    """Byte-level BPE that merges nothing, so that the id of each byte is its value."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocabulary = {letter: byte for byte, letter in bytes_to_unicode().items()}
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END)


def _from_transformers(name: str) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer, GPT2TokenizerFast  # slow, and not needed once tokens are prepared

    folder = Path(name)
    bare_gpt2 = (folder / "vocab.json").is_file() and not any(folder.glob("*config.json"))
    loader = GPT2TokenizerFast if bare_gpt2 else AutoTokenizer
    try:
        tokenizer: PreTrainedTokenizerBase = loader.from_pretrained(name)
    except OSError as error:  # its words come first: they tell whether the hub is away or has no such tokenizer
        hint = "name a folder on the shared disk, a name in the node's cache of the hub, or bytes"
        raise OSError(f"{error}\ntrain.tokenizer: no tokenizer {name} on this node: {hint}") from error
    return tokenizer
