"""The keys of DeepSpeed (0.19.8) that a spec may set, and what each of them takes. Pure: it never imports DeepSpeed.

What DeepSpeed would refuse would end the run on the node, and what it takes all the same (a number in quotes) counts
here as there. `tests/integration/trainer/test_deepspeed_keys.py` holds the table against the installed DeepSpeed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Final

_MOST: Final = 2**63 - 1
"""The largest whole number that torch and C++ hold."""
_LARGEST_POWER: Final = 1023
"""Of two, that a float holds."""


@dataclass(frozen=True)
class Kind:
    """What one key takes.

    Attributes:
        words: the same in words, after "expected".
        fits: whether a value is one.
        choices: the words to choose from, if it takes no other.
        of: what it is, if it is one thing: `whole`, `number`, `bool`, `text` or `section`.
        empty: no value is a value too.
    """

    words: str
    fits: Callable[[Any], bool]
    of: str = ""
    choices: tuple[str, ...] = ()
    empty: bool = False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _whole(least: int, most: int = _MOST, *, plain: bool = False) -> Kind:
    """A whole number, also written as `5e8`, which `plain` ones may not be."""

    def fits(value: Any) -> bool:
        whole = isinstance(value, int) if plain else _is_number(value) and value == int(value)
        return whole and not isinstance(value, bool) and least <= value <= most

    from_ = "" if least == -_MOST else f" from {least}" if most == _MOST else f" from {least} to {most}"
    return Kind(f"a whole number{from_}", fits, "whole")


def _number(least: float, most: float | None = None, *, above: bool = False) -> Kind:
    def fits(value: Any) -> bool:
        return _is_number(value) and (value > least if above else value >= least) and (most is None or value <= most)

    words = f"more than {least:g}" if above else f"from {least:g}"
    return Kind(f"a number {words}{'' if most is None else f' to {most:g}'}", fits, "number")


def _one_of(*choices: str, any_case: bool = False) -> Kind:
    def fits(value: Any) -> bool:
        return isinstance(value, str) and (value.lower() if any_case else value) in choices

    *others, last = choices
    return Kind(f"{', '.join(others)} or {last}", fits, "text", choices)


def _maybe(kind: Kind) -> Kind:
    return replace(kind, empty=True)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_is_number(item) and 0 <= item < 1 for item in value)


def _is_eps(value: Any) -> bool:
    return (_is_number(value) and value >= 0) or isinstance(value, list)


SWITCH: Final = Kind("true or false", lambda value: isinstance(value, int) and value in (0, 1), "bool")
READ_HERE: Final = Kind("true or false", lambda value: isinstance(value, bool), "bool")
"""One that this program asks for, too, and by which it tells what is on."""
TEXT: Final = Kind("text", lambda value: isinstance(value, str), "text")
NAMES: Final = Kind("a list of names", lambda value: isinstance(value, str) or _is_texts(value), "text")
TEXTS: Final = Kind("a list of names", _is_texts)
KEPT_FP32: Final = Kind('"auto" or a list of names', lambda value: value == "auto" or _is_texts(value))
PAIR: Final = Kind("two numbers from 0 to below 1", _is_pair)
EPS: Final = Kind("a number from 0", _is_eps, "number")
SECTION: Final = Kind("a mapping", lambda value: isinstance(value, Mapping), "section")
ANY: Final = Kind("a value", lambda _: True, empty=True)
"""Of a key that `train` has, or that the built-in trainer does not serve: that says more."""

INTEGER: Final = _whole(-_MOST)
COUNT: Final = _whole(0)
POSITIVE: Final = _whole(1)
PLAIN: Final = _whole(1, plain=True)
POWER: Final = _whole(-_LARGEST_POWER, _LARGEST_POWER)
SHARE: Final = _number(0, 1)
SCALE: Final = _number(0)
FACTOR: Final = _number(0, above=True)
DEVICE: Final = _one_of("none", "cpu", "nvme")
WIRE: Final = _one_of("fp32", "fp16", "bf16", any_case=True)
DTYPE: Final = _one_of(
    *"fp32 fp16 bf16 float32 float16 bfloat16 float half torch.float32 torch.float16 torch.bfloat16".split()  # noqa: SIM905
)
LEVEL: Final = _one_of("debug", "info", "warning", "error", "critical", any_case=True)
MEAN_OR_SUM: Final = _one_of("mean", "sum", any_case=True)
TAGS: Final = _one_of("warn", "ignore", "fail", any_case=True)
PASSES: Final = Kind(
    "a list of z1, z3, autosp, autotp",
    lambda value: _is_texts(value) and set(value) <= {"z1", "z3", "autosp", "autotp"},
)

_TABLE: Final[Mapping[str, tuple[tuple[Kind, str], ...]]] = {
    "": (
        (
            SWITCH,
            """disable_python_gc dump_state memory_breakdown prescale_gradients wall_clock_breakdown
            zero_allow_untested_optimizer zero_force_ds_cpu_optimizer""",
        ),
        (_maybe(POSITIVE), "steps_per_print"),
        (_maybe(COUNT), "vocabulary_size"),
        (FACTOR, "gradient_predivide_factor"),
        (MEAN_OR_SUM, "gradient_allreduce_op"),
        (_maybe(WIRE), "communication_data_type"),
        (_maybe(LEVEL), "log_level"),
        (ANY, "gradient_clipping train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps"),
        (_maybe(SECTION), "aio"),
        (
            SECTION,
            """bf16 checkpoint comet comms_logger compile csv_monitor data_types flops_profiler fp16 optimizer
            tensorboard timers torch_autocast wandb zero_optimization""",
        ),
    ),
    "zero_optimization": (
        (
            ANY,
            """allgather_partitions cpu_offload cpu_offload_param cpu_offload_use_pin_memory elastic_checkpoint
            legacy_stage1 load_from_fp32_weights stage zenflow""",
        ),
        (
            SWITCH,
            """allgather_sequential compute_grad_norm contiguous_gradients
            enable_sanity_checks gather_16bit_weights_on_model_save ignore_unused_parameters
            log_trace_cache_warnings memory_efficient_linear
            override_module_apply parameter_alignment pipeline_loading_checkpoint reduce_scatter
            round_robin_gradients save_muon_momentum_buffer_in_memory stage3_allgather_sequential
            stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save
            stage3_use_all_reduce_for_fetch_params use_all_reduce_for_fetch_params
            use_multi_rank_bucket_allreduce zero_quantized_gradients zero_quantized_nontrainable_weights
            zero_quantized_weights""",
        ),
        (_maybe(SWITCH), "overlap_comm"),
        (POSITIVE, "reduce_bucket_size"),
        (
            COUNT,
            """allgather_bucket_size max_live_parameters max_reuse_distance model_persistence_threshold
            param_persistence_threshold prefetch_bucket_size stage3_max_live_parameters
            stage3_max_reuse_distance stage3_model_persistence_threshold stage3_param_persistence_threshold
            stage3_prefetch_bucket_size sub_group_size zero_hpz_partition_size""",
        ),
        (INTEGER, "module_granularity_threshold stage3_module_granularity_threshold"),
        (_maybe(SECTION), "leaf_module offload_optimizer offload_param"),
    ),
    "zero_optimization.offload_param": (
        (DEVICE, "device"),
        (_maybe(TEXT), "nvme_path"),
        (COUNT, "buffer_count buffer_size max_in_cpu"),
        (SWITCH, "pin_memory"),
    ),
    "zero_optimization.offload_optimizer": (
        (DEVICE, "device"),
        (_maybe(TEXT), "nvme_path"),
        (COUNT, "buffer_count"),
        (SHARE, "cpuadam_cores_perc ratio"),
        (SWITCH, "fast_init pin_memory pipeline_read pipeline_write super_offload"),
    ),
    "zero_optimization.leaf_module": ((NAMES, "classes name_suffixes names"),),
    "bf16": (
        (READ_HERE, "enabled"),
        (SWITCH, "bf16_master_weights_and_grads bf16_optimizer_states check_grad_overflow immediate_grad_update"),
    ),
    "fp16": (
        (READ_HERE, "enabled"),
        (SWITCH, "auto_cast consecutive_hysteresis fp16_master_weights_and_grads"),
        (POSITIVE, "loss_scale_window min_loss_scale"),
        (INTEGER, "hysteresis"),
        (POWER, "initial_scale_power"),
        (SCALE, "loss_scale"),
    ),
    "compile": (
        (READ_HERE, "deepcompile"),
        (INTEGER, "free_activation_threshold"),
        (_maybe(PASSES), "passes"),
        (
            SWITCH,
            """autoep_non_moe debug_log double_buffer free_activation keep_all_input_tensors
            keep_int_input_tensors offload_activation offload_activation_pin_memory offload_opt_states
            offload_parameters symmetric_memory sync_after_allgather sync_after_reduce sync_before_allgather
            sync_before_reduce""",
        ),
    ),
    "comms_logger": ((SWITCH, "debug enabled prof_all verbose"), (TEXTS, "prof_ops")),
    "tensorboard": ((SWITCH, "enabled"), (TEXT, "job_name output_path")),
    "csv_monitor": ((SWITCH, "enabled"), (TEXT, "job_name output_path")),
    "wandb": ((SWITCH, "enabled"), (TEXT, "project"), (_maybe(TEXT), "group team")),
    "comet": (
        (SWITCH, "enabled"),
        (_maybe(SWITCH), "online"),
        (INTEGER, "samples_log_interval"),
        (_maybe(TEXT), "api_key experiment_key experiment_name mode project workspace"),
    ),
    "timers.throughput": ((SWITCH, "enabled synchronized"),),
    # Those below read what they know, and nothing else.
    "timers": ((SECTION, "throughput"),),
    "aio": (
        (PLAIN, "block_size intra_op_parallelism queue_depth"),
        (SWITCH, "overlap_events single_submit use_gds"),
    ),
    "flops_profiler": (
        (SWITCH, "detailed enabled"),
        (COUNT, "profile_step"),
        (_whole(-1, plain=True), "module_depth"),
        (_whole(0, plain=True), "top_modules"),
        (SCALE, "recompute_fwd_factor"),
        (_maybe(TEXT), "output_file"),
    ),
    "checkpoint": (
        (TAGS, "tag_validation"),
        (SECTION, "parallel_write"),
        (ANY, "checkpoint_serialization load_universal use_node_local_storage writer"),
    ),
    "checkpoint.parallel_write": ((SWITCH, "pipeline_stage"),),
    "data_types": ((_maybe(DTYPE), "buffer_dtype grad_accum_dtype param_dtype"), (KEPT_FP32, "keep_in_fp32_modules")),
    "torch_autocast": ((SWITCH, "enabled"), (DTYPE, "dtype"), (TEXTS, "lower_precision_safe_modules")),
    "optimizer": ((TEXT, "type"), (SECTION, "params"), (SWITCH, "legacy_fusion")),
    "optimizer.params": (
        (PAIR, "betas"),
        (EPS, "eps"),
        (SCALE, "adam_lr lr momentum muon_lr weight_decay"),
        (SWITCH, "adam_w_mode amsgrad bias_correction fp32_optimizer_states maximize nesterov set_grad_none"),
        (_maybe(SWITCH), "capturable differentiable foreach fused"),
        (SWITCH, "torch_adam"),
    ),
    # Of scripts of one's own: the built-in trainer serves none of these.
    "activation_checkpointing": (
        (
            SWITCH,
            """contiguous_memory_optimization cpu_checkpointing partition_activations profile
            synchronize_checkpoint_boundary""",
        ),
        (_maybe(COUNT), "number_checkpoints"),
    ),
    "scheduler": ((_maybe(TEXT), "type"), (SECTION, "params")),
    "scheduler.params": (
        (
            ANY,
            """cos_min_ratio cycle_first_stair_count cycle_first_step_size cycle_max_lr cycle_max_mom cycle_min_lr
            cycle_min_mom cycle_momentum cycle_second_stair_count cycle_second_step_size decay_lr_rate decay_mom_rate
            decay_step_size last_batch_iteration lr_range_test_min_lr lr_range_test_staircase lr_range_test_step_rate
            lr_range_test_step_size total_num_steps warmup_max_lr warmup_min_lr warmup_min_ratio warmup_num_steps
            warmup_type""",
        ),
    ),
    "data_efficiency": ((SWITCH, "enabled"), (COUNT, "seed"), (SECTION, "data_routing data_sampling")),
}

KEYS: Final[Mapping[str, Mapping[str, Kind]]] = {
    section: {key: kind for kind, keys in rows for key in keys.split()} for section, rows in _TABLE.items()
}
"""By section, `""` for the top: its keys, and what they take."""

_OWN: Final = ("activation_checkpointing", "scheduler", "data_efficiency")
_OPEN: Final = frozenset(
    {"", "timers", "aio", "flops_profiler", "checkpoint", "data_types", "torch_autocast", "optimizer", *_OWN}
)
CLOSED: Final[Mapping[str, frozenset[str]]] = {
    section: frozenset(keys)
    for section, keys in KEYS.items()
    if section not in _OPEN and not section.startswith(("optimizer.", "checkpoint.", "scheduler."))
}
"""The keys of sections in which DeepSpeed refuses any other, which ends the run on the node.

These are pydantic's models, which read digits in quotes as a number.
"""
