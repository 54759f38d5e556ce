"""What of DeepSpeed's configuration the built-in trainer serves, and why not the rest. Pure.

A section that it does not serve would end the run on the node, or change nothing without a word. A script of the user's
own may have any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..errors import Finding, did_you_mean
from .model import RunConfig
from .normalize import section

_LEAVE_OUT: Final = "leave it out"
_OWN_SCRIPT: Final = "use a script of your own, as `command`"


@dataclass(frozen=True)
class Unserved:
    """A section, or a key of one, that the built-in trainer does not serve.

    Attributes:
        why: the message, without the key.
        instead: the hint.
        neutral: a value that asks for nothing; a section that only says `enabled: false` asks for nothing, too.
        removed: DeepSpeed stops at the key whatever its value is.
    """

    why: str
    instead: str
    neutral: Any = None
    removed: bool = False

    def asked_for(self, value: Any) -> bool:
        """Whether a value of the key is more than a way to leave it out."""
        if self.removed:
            return True
        off = isinstance(value, Mapping) and value.get("enabled") is False
        return not off and (self.neutral is None or value != self.neutral)


def _gone(instead: str = _LEAVE_OUT) -> Unserved:
    return Unserved("is no longer in DeepSpeed (0.19.8), which stops at this key", instead, removed=True)


SERVED: Final = frozenset(
    """aio bf16 checkpoint comet comms_logger communication_data_type compile csv_monitor data_types disable_python_gc
    dump_state flops_profiler fp16 gradient_accumulation_steps gradient_allreduce_op gradient_clipping
    gradient_predivide_factor log_level memory_breakdown optimizer prescale_gradients steps_per_print tensorboard
    timers torch_autocast train_batch_size train_micro_batch_size_per_gpu vocabulary_size wall_clock_breakdown wandb
    zero_allow_untested_optimizer zero_force_ds_cpu_optimizer zero_optimization""".split()  # noqa: SIM905
)
"""Keys at the top that do in the built-in training what they do in DeepSpeed; what is in them is DeepSpeed's affair."""

_OWN_LOADER: Final = "needs DeepSpeed's data loader, and the built-in training has its own"

UNSERVED: Final[Mapping[str, Unserved]] = {
    "tensor_parallel": Unserved(
        "is a field of train here, from which batches, data and checkpoints follow", "use train.tensor_parallel"
    ),
    "sequence_parallel_size": Unserved(
        "is a field of train here, from which batches and data follow", "use train.sequence_parallel", neutral=1
    ),
    "data_parallel_size": Unserved("is the number of ranks here", "use ranks_per_node and slurm.nodes"),
    "seq_parallel_communication_data_type": Unserved(
        "has no effect: gradients are reduced over all ranks alike, also where they share samples", _LEAVE_OUT
    ),
    "pipeline": Unserved("has no effect: the built-in training makes no pipeline", f"zero_stage: 3, or {_OWN_SCRIPT}"),
    "expert_parallel": Unserved(
        "spreads experts over ranks: here every rank has all of them, or its ZeRO part", _OWN_SCRIPT
    ),
    "use_data_before_expert_parallelism": Unserved(
        "is for expert parallelism, which is not served", _LEAVE_OUT, neutral=False
    ),
    "data_efficiency": Unserved(_OWN_LOADER, _OWN_SCRIPT),
    "dataloader_drop_last": Unserved(f"{_OWN_LOADER}, which takes whole batches only", _LEAVE_OUT, neutral=False),
    "scheduler": Unserved("the built-in training has its own", "use train.schedule"),
    "activation_checkpointing": Unserved(
        "has no effect: the model recomputes by PyTorch's own means", "use train.activation_checkpointing"
    ),
    "managed_gradient_accumulation": Unserved(
        "would step after each micro-batch: the built-in training lets DeepSpeed accumulate", _LEAVE_OUT, neutral=True
    ),
    "hybrid_engine": Unserved("is for generating between steps, which the built-in training does not do", _OWN_SCRIPT),
    "autotuning": Unserved(
        "ends each run to start experiments of its own", "use train.micro_batch: auto, and a matrix of what to try"
    ),
    "weight_quantization": Unserved("has no effect on weights that are trained", _LEAVE_OUT),
    "disable_allgather": Unserved("has no effect: DeepSpeed (0.19.8) only reads it", _LEAVE_OUT, neutral=False),
    "datastates_ckpt": Unserved("still writes when a checkpoint is taken for complete", _LEAVE_OUT, neutral=False),
    "bfloat16": Unserved("has no effect beside bf16", "write bf16, or use train.precision"),
    "monitor_config": Unserved(
        "is not a DeepSpeed key: DeepSpeed would ignore it", "use tensorboard, wandb, comet or csv_monitor"
    ),
    "zenflow": Unserved("is not a DeepSpeed key: DeepSpeed would ignore it", _LEAVE_OUT),
    "nebula": _gone(),
    "compression_training": _gone(_OWN_SCRIPT),
    "amp": _gone("use train.precision"),
    "quantize_training": _gone(),
    "sparse_gradients": _gone(),
    "eigenvalue": _gone(),
    "sparse_attention": _gone("see train.attention"),
    "elasticity": _gone("use train.universal_checkpoint, by which a run resumes on another number of ranks"),
    "graph_harvesting": _gone("use train.compile"),
    "curriculum_learning": _gone(),
    "progressive_layer_drop": _gone(),
    "zero_optimization.mics_shard_size": _gone("use zero_optimization.zero_hpz_partition_size"),
    "zero_optimization.mics_hierarchical_params_gather": _gone("use zero_optimization.zero_hpz_partition_size"),
    "zero_optimization.zeropp_loco_param": _gone(),
    "zero_optimization.zenflow": Unserved(
        "does not take the AdamW that the built-in training uses", f"use train.offload, or {_OWN_SCRIPT}"
    ),
    "checkpoint.load_universal": Unserved(
        "is set for an attempt that resumes on another number of ranks", "use train.universal_checkpoint", neutral=False
    ),
    "checkpoint.use_node_local_storage": Unserved(
        "keeps parts where other nodes cannot read them: a run resumes on any node", _LEAVE_OUT, neutral=False
    ),
    "checkpoint.writer": Unserved("stops DeepSpeed (0.19.8) where ranks share only data", _LEAVE_OUT),
}
"""Keys that DeepSpeed reads, or once read, and that the built-in trainer does not serve; a dot leads into a section."""

CLOSED: Final[Mapping[str, frozenset[str]]] = {
    section: frozenset(keys.split())
    for section, keys in {
        "zero_optimization": """allgather_bucket_size allgather_partitions allgather_sequential compute_grad_norm
            contiguous_gradients cpu_offload cpu_offload_param cpu_offload_use_pin_memory elastic_checkpoint
            enable_sanity_checks gather_16bit_weights_on_model_save ignore_unused_parameters leaf_module legacy_stage1
            load_from_fp32_weights log_trace_cache_warnings max_live_parameters max_reuse_distance
            memory_efficient_linear model_persistence_threshold module_granularity_threshold offload_optimizer
            offload_param overlap_comm override_module_apply param_persistence_threshold parameter_alignment
            pipeline_loading_checkpoint prefetch_bucket_size reduce_bucket_size reduce_scatter round_robin_gradients
            save_muon_momentum_buffer_in_memory stage stage3_allgather_sequential
            stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save
            stage3_max_live_parameters stage3_max_reuse_distance stage3_model_persistence_threshold
            stage3_module_granularity_threshold stage3_param_persistence_threshold stage3_prefetch_bucket_size
            stage3_use_all_reduce_for_fetch_params sub_group_size use_all_reduce_for_fetch_params
            use_multi_rank_bucket_allreduce zenflow zero_hpz_partition_size zero_quantized_gradients
            zero_quantized_nontrainable_weights zero_quantized_weights""",
        "zero_optimization.offload_param": "buffer_count buffer_size device max_in_cpu nvme_path pin_memory",
        "zero_optimization.offload_optimizer": """buffer_count cpuadam_cores_perc device fast_init nvme_path pin_memory
            pipeline_read pipeline_write ratio super_offload""",
        "bf16": "bf16_master_weights_and_grads bf16_optimizer_states check_grad_overflow enabled immediate_grad_update",
        "fp16": """auto_cast consecutive_hysteresis enabled fp16_master_weights_and_grads hysteresis
            initial_scale_power loss_scale loss_scale_window min_loss_scale""",
    }.items()
}
"""The keys of sections in which DeepSpeed (0.19.8) refuses any other, which ends the run on the node."""

_OPTIMIZERS: Final = "Adagrad Adam AdamW Lamb Lion MuAdam MuAdamW MuSGD Muon".split()  # noqa: SIM905
"""Optimizers that DeepSpeed (0.19.8) finds in upper case or not."""

_OF_PYTORCH: Final = """ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD
    SparseAdam""".split()  # noqa: SIM905
"""Those that it takes from torch.optim, where case counts."""

_KNOWN: Final = SERVED | {key for key in UNSERVED if "." not in key}


def misspelt(given: Mapping[str, Any]) -> Iterator[Finding]:
    """Keys that DeepSpeed would ignore or refuse. One that is like none of its own may be a newer version's."""
    for key in given:
        hint = did_you_mean(key.lower().replace("-", "_"), _KNOWN, None, cutoff=0.8)
        if hint and key not in _KNOWN:
            yield Finding((("deepspeed", key),), "is not a DeepSpeed key: DeepSpeed would ignore it", hint, at_key=True)
    for name, keys in CLOSED.items():
        around = tuple(name.split("."))
        for key in section(given, around):
            hint = did_you_mean(str(key).lower().replace("-", "_"), keys, None, cutoff=0.8)
            if hint and key not in keys and f"{name}.{key}" not in UNSERVED:
                message = f"is not a key of {around[-1]}: DeepSpeed would refuse it"
                yield Finding((("deepspeed", *around, key),), message, hint, at_key=True)


def misspelt_optimizer(kind: str) -> Iterator[Finding]:
    """A type that would stop DeepSpeed, as far as it is like one that it knows."""
    if kind.lower() in map(str.lower, _OPTIMIZERS) or kind in _OF_PYTORCH:
        return
    if hint := did_you_mean(kind, [*_OPTIMIZERS, *_OF_PYTORCH], None, cutoff=0.8):
        yield Finding((("deepspeed", "optimizer", "type"),), "is no optimizer of DeepSpeed or PyTorch", hint)


def unserved(config: RunConfig) -> Iterator[Finding]:
    """What a run of the built-in trainer asks DeepSpeed for, and would not get."""
    given = config.deepspeed
    for key, row in UNSERVED.items():
        *around, name = key.split(".")
        holder = section(given, tuple(around))
        if name in holder and row.asked_for(holder[name]):
            yield Finding((("deepspeed", *around, name),), row.why, row.instead, at_key=True)
    yield from _scaled_gradients(config)


def _scaled_gradients(config: RunConfig) -> Iterator[Finding]:
    """What DeepSpeed refuses beside the reduce-scatter of ZeRO 2 and 3, which takes the mean by itself."""
    given = config.deepspeed
    scattered = config.train.zero_stage >= 2 and section(given, ("zero_optimization",)).get("reduce_scatter", True)
    if not scattered or given.get("gradient_allreduce_op") == "sum":
        return
    for name, neutral in (("prescale_gradients", False), ("gradient_predivide_factor", 1.0)):
        if given.get(name, neutral) != neutral:
            message = f"does not work with the reduce-scatter of ZeRO {config.train.zero_stage}"
            hint = "leave it out, or set deepspeed.zero_optimization.reduce_scatter: false"
            yield Finding((("deepspeed", name), ("train", "zero_stage")), message, hint)
