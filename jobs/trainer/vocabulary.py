"""The padding of a model's vocabulary to a size that matrix products on a GPU are fast with."""

from __future__ import annotations

from transformers import PreTrainedModel

VOCAB_MULTIPLE = 128
"""Rows of the embeddings are a multiple of this: 128 numbers of two bytes are what tensor cores read at once."""


def pad_vocabulary(model: PreTrainedModel) -> None:
    """Adds rows to the embeddings, and to the output layer, up to the next multiple of ``VOCAB_MULTIPLE``.

    All other weights stay what they were: so the seed gives the same model, whatever its vocabulary is padded to.
    The new rows belong to no token, and their logits are left out of the loss.
    """
    model.resize_token_embeddings(pad_to_multiple_of=VOCAB_MULTIPLE, mean_resizing=False)
