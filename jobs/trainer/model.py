"""The causal language model, its loss, and attention that stays on the fast path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.integrations import HfDeepSpeedConfig
from transformers.utils import logging

from dscampaign.jobs.shared.model_shapes import PLAIN_CAUSAL_MODELS, VOCAB_MULTIPLE, find_shape

from . import swap_space
from .config import TrainerConfig
from .data import Data
from .flat_parameters import MATRICES
from .fused_loss import linear_cross_entropy, plain_cross_entropy
from .preflight import misspelt_fields
from .rank_groups import HEADS, prepare_to_cut, register, require_shares
from .tokens import Tokenizer
from .weights import hand_over, random_model

CAUSAL_SDPA = "causal_sdpa"
# Their logits are the last hidden states times the output layer's weights.
PLAIN_OUTPUT_MODELS = PLAIN_CAUSAL_MODELS | {"mistral", "phi3"}
DROPOUT_FIELDS = (
    *("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    *("dropout", "attention_dropout", "activation_dropout", "hidden_dropout", "residual_dropout"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "local_attention_probs_dropout_prob"),
)

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""How a configuration may call the number of a mixture's experts."""


@dataclass(frozen=True)
class ModelFacts:
    """Facts of a model that its speed relates to, without padding of the vocabulary."""

    parameters: int
    matrix_parameters: float  # weights that multiply for each token
    layers: int
    width: int
    attention_width: float  # heads times head size, the mean over layers; a layer with a window counts in proportion
    vocab_size: int
    flops_per_token: float  # ``6 matrix_parameters + 12 layers attention_width seq_len``


class NextTokenLoss(nn.Module):
    """A causal language model that returns its loss, so that a single compiled graph holds both.

    `first_position`: position of the inputs in their samples if ranks share samples, else None.
    """

    def __init__(
        self, model: PreTrainedModel, vocab_size: int, *, fused: bool = False, first_position: int | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.vocab_size = vocab_size
        self.fused = fused
        self.first_position = first_position
        self._plain_loss = plain_cross_entropy

    def compile_parts(self, blocks: Iterable[nn.Module]) -> None:
        """Compile each block and the loss by themselves; the gathers of a block's weights stay outside."""
        for block in blocks:
            block.forward = torch.compile(block.forward)
        self._plain_loss = torch.compile(plain_cross_entropy)

    def forward(self, inputs_BS: Tensor, targets_BS: Tensor) -> Tensor:
        """Mean cross-entropy (nats) over all targets that are not ``IGNORED_TARGET``."""
        positions = {}
        if self.first_position is not None:
            last = self.first_position + inputs_BS.shape[1]
            positions["position_ids"] = torch.arange(self.first_position, last, device=inputs_BS.device)[None]
        if self.fused:
            hidden_BSW = self.model.base_model(input_ids=inputs_BS, use_cache=False, **positions)[0]
            weight_VW = self.model.get_output_embeddings().weight
            return linear_cross_entropy(hidden_BSW.flatten(0, 1), weight_VW, targets_BS.flatten(), self.vocab_size)
        logits_BSV = self.model(input_ids=inputs_BS, use_cache=False, **positions).logits
        return self._plain_loss(logits_BSV.flatten(0, 1), targets_BS.flatten(), self.vocab_size)


def build_model(config: TrainerConfig, data: Data, ds_config: Mapping[str, Any]) -> tuple[NextTokenLoss, ModelFacts]:
    """Build the model with weights that do not depend on ZeRO stage, ranks and micro-batch.

    Random weights are drawn on every rank's CPU from the seed, in fp32, and their vocabulary is padded. Under ZeRO-3
    weights are partitioned while they are drawn or read. Raises ValueError: it does not fit the data.
    """
    logging.set_verbosity_error()
    model_config = find_model_config(config, data)
    _require_fit(model_config, config, data)
    model = _create(config, model_config, ds_config)
    if config.activation_checkpointing:
        # The other way saves full parameters that ZeRO-3 has partitioned again by the time they are needed.
        model.gradient_checkpointing_enable({"use_reentrant": config.zero_stage == 3})
    facts = _facts(model, config.seq_len)
    if not config.pretrained:
        pad_vocabulary(model)
    hand_over(model, ds_config)
    if config.tensor_parallel > 1:
        prepare_to_cut(model, config.tensor_parallel)
    if config.fused_loss:
        _require_plain_output(model)
    first = dist.get_rank() % config.sequence_parallel * config.part_len if config.sequence_parallel > 1 else None
    return NextTokenLoss(model, facts.vocab_size, fused=config.fused_loss, first_position=first), facts


def pad_vocabulary(model: PreTrainedModel) -> None:
    """Add rows to the embeddings, and to the output layer, up to the next multiple of ``VOCAB_MULTIPLE``.

    All other weights stay, so the seed gives the same model for any padding. The new rows belong to no token, and their
    logits are left out of the loss.
    """
    model.resize_token_embeddings(pad_to_multiple_of=VOCAB_MULTIPLE, mean_resizing=False)


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Matrices with the configured weight decay; biases and norms without."""
    named = list(model.named_parameters())
    matrix = {name for name, p in named if len(whole_shape(p)) >= 2 or name.rpartition(".")[2] == MATRICES}
    matrices, vectors = ([p for name, p in named if (name in matrix) is wanted] for wanted in (True, False))
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the model's transformer blocks in order: the modules that Transformers never divides among devices."""
    undivided = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return [module for module in model.modules() if type(module).__name__ in undivided]


def causal_sdpa(
    _module: nn.Module,
    query_BHSD: Tensor,
    key_BHSD: Tensor,
    value_BHSD: Tensor,
    _attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_kwargs: object,
) -> tuple[Tensor, None]:
    """Attention without a mask tensor: a mask, though only causal, takes SDPA off its flash kernel."""
    grouped = query_BHSD.shape[1] != key_BHSD.shape[1]
    output_BHSD = F.scaled_dot_product_attention(
        query_BHSD, key_BHSD, value_BHSD, dropout_p=dropout, scale=scaling, is_causal=True, enable_gqa=grouped
    )
    return output_BHSD.transpose(1, 2).contiguous(), None


def find_model_config(config: TrainerConfig, tokens: Data | Tokenizer) -> PreTrainedConfig:
    """Return the model's configuration before its vocabulary is padded. Raises ValueError, OSError."""
    fields = config.model
    if isinstance(fields, str):
        shape = None if config.pretrained else find_shape(fields)
        model_config = AutoConfig.from_pretrained(fields) if shape is None else _from_fields(shape, tokens)
    else:
        for name, near in misspelt_fields(fields).items():
            raise ValueError(f"train.model.{name}: {fields['model_type']} has no such field; did you mean {near}?")
        model_config = _from_fields(fields, tokens)
    for name in DROPOUT_FIELDS:
        if hasattr(model_config, name):
            setattr(model_config, name, config.dropout)
    return model_config


def _from_fields(model: Mapping[str, Any], tokens: Data | Tokenizer) -> PreTrainedConfig:
    fields = {"bos_token_id": tokens.eos, "eos_token_id": tokens.eos, **model}
    if fields.get("vocab_size", "auto") == "auto":
        fields["vocab_size"] = tokens.vocab_size
    return AutoConfig.for_model(**fields)


def _require_fit(model_config: PreTrainedConfig, config: TrainerConfig, data: Data) -> None:
    """Here, because on a GPU an index out of range is an assertion that names nothing."""
    if model_config.vocab_size < data.vocab_size:
        raise ValueError(f"the model has {model_config.vocab_size} token ids, the tokenizer {data.vocab_size}")
    positions = getattr(model_config, "max_position_embeddings", None)
    if positions is not None and positions < config.seq_len:
        raise ValueError(f"train.seq_len: {config.seq_len}, but the model has {positions} positions")


def _create(config: TrainerConfig, model_config: PreTrainedConfig, ds_config: Mapping[str, Any]) -> PreTrainedModel:
    AttentionInterface.register(CAUSAL_SDPA, causal_sdpa)
    options = {"attn_implementation": _attention(config, model_config), "dtype": torch.float32}
    partitioned = _with_room(ds_config, model_config) if config.zero_stage == 3 and ds_config else None
    if not config.pretrained:
        return random_model(model_config, options, config.seed, partitioned)
    torch.manual_seed(config.seed)  # of what the weights lack
    partition = HfDeepSpeedConfig(dict(partitioned)) if partitioned else None
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(config.model, config=model_config, **options)
    del partition  # it is in force as long as it lives
    return model


def _with_room(ds_config: Mapping[str, Any], model_config: PreTrainedConfig) -> Mapping[str, Any]:
    if not swap_space.in_use(ds_config):
        return ds_config
    with torch.device("meta"):
        shapes = AutoModelForCausalLM.from_config(deepcopy(model_config))  # the padding is written into it
        pad_vocabulary(shapes)
    return swap_space.with_room(ds_config, max(p.numel() for p in shapes.parameters()), dist.get_world_size())


def _attention(config: TrainerConfig, model_config: PreTrainedConfig) -> str | None:
    """The implementation; None leaves it to Transformers, which takes SDPA for every model that has it."""
    if config.attention != "auto":
        return config.attention
    plain = model_config.model_type in PLAIN_CAUSAL_MODELS and getattr(model_config, "sliding_window", None) is None
    if config.sequence_parallel > 1:
        if not plain:
            served = ", ".join(sorted(PLAIN_CAUSAL_MODELS))
            raise ValueError(f"train.sequence_parallel: not for {model_config.model_type}; it is known to fit {served}")
        require_shares("sequence_parallel", model_config, HEADS, config.sequence_parallel)
        return register(causal_sdpa, config.sequence_parallel)
    return CAUSAL_SDPA if plain else None


def _require_plain_output(model: PreTrainedModel) -> None:
    """The fused loss computes ``hidden @ weight.T`` and nothing that a model may do to its logits besides."""
    output = model.get_output_embeddings()
    plain = model.config.model_type in PLAIN_OUTPUT_MODELS and getattr(output, "bias", None) is None
    if not plain:
        served = ", ".join(sorted(PLAIN_OUTPUT_MODELS))
        raise ValueError(f"train.fused_loss: not for {model.config.model_type}; it is known to fit {served}")


def _facts(model: PreTrainedModel, seq_len: int) -> ModelFacts:
    config = model.config
    shapes = {name: whole_shape(p) for name, p in model.named_parameters()}
    matrices = _matrix_parameters(model, shapes)
    attention = _attention_width(config, seq_len)
    flops = 6.0 * matrices + 12.0 * config.num_hidden_layers * attention * seq_len
    parameters = sum(shape.numel() for shape in shapes.values())
    sizes = config.num_hidden_layers, config.hidden_size, attention, config.vocab_size
    return ModelFacts(parameters, matrices, *sizes, flops)


def _matrix_parameters(model: PreTrainedModel, shapes: Mapping[str, torch.Size]) -> float:
    """Count the weights that multiply. A table counts only as the output layer, once also if it is the input's too."""
    output = model.get_output_embeddings()
    multiplies = None if output is None else output.weight
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)} - {id(multiplies)}
    counted = {
        name: shapes[name].numel()
        for name, p in model.named_parameters()
        if len(shapes[name]) > 1 and id(p) not in tables and not name.endswith("bias")
    }
    of_experts = sum(size for name, size in counted.items() if ".experts." in name)
    experts = next((getattr(model.config, name) for name in EXPERTS if getattr(model.config, name, None)), 0)
    used = getattr(model.config, "num_experts_per_tok", None)
    idle = 1.0 - used / experts if experts and used else 0.0
    return sum(counted.values()) - idle * of_experts


def _attention_width(config: PreTrainedConfig, seq_len: int) -> float:
    """Return heads times head size, the mean over layers.

    All pairs of positions count, also pairs that a causal mask hides, as in the PaLM paper. A window counts as its part
    of the sample. Layers without attention, or with linear attention, count nothing.
    """
    heads = getattr(config, "num_attention_heads", None) or 0
    size = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else 0)
    queries, values = (getattr(config, name, None) or size for name in ("qk_head_dim", "v_head_dim"))
    window = getattr(config, "sliding_window", None) or seq_len
    chunk = getattr(config, "attention_chunk_size", None) or seq_len
    reach = {"full_attention": seq_len, "sliding_attention": window, "chunked_attention": chunk}
    kinds = getattr(config, "layer_types", None)
    each = [window] if kinds is None else [reach.get(kind, 0) for kind in kinds]
    reached = sum(min(length, seq_len) for length in each) / len(each)
    return heads * (queries + values) / 2 * reached / seq_len


def whole_shape(parameter: Tensor) -> torch.Size:
    """Return the whole parameter's shape, also if ZeRO-3 has left this rank a part."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape
