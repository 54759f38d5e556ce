"""Names of our fields in other tools. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from dscampaign.orchestrator.errors import nearest

_Else = TypeVar("_Else", str, str | None)

_OURS: Final = {
    other: ours
    for ours, others in {
        "lr": "learning_rate max_lr peak_lr base_lr",
        "schedule": "lr_schedule lr_scheduler lr_scheduler_type scheduler",
        "warmup_steps": "warmup num_warmup_steps lr_warmup_steps",
        "min_lr_ratio": "min_lr",
        "weight_decay": "wd",
        "grad_clip": "max_grad_norm gradient_clipping gradient_clip_val clip_grad",
        "beta1": "adam_beta1",
        "beta2": "adam_beta2",
        "eps": "epsilon adam_epsilon",
        "global_batch": "batch_size train_batch_size global_batch_size total_batch_size",
        "micro_batch": "micro_batch_size per_device_batch_size per_device_train_batch_size"
        " train_micro_batch_size_per_gpu",
        "steps": "max_steps num_steps num_training_steps total_steps train_steps train_iters max_iters iterations",
        "epochs": "num_epochs max_epochs num_train_epochs",
        "seq_len": "seq_length max_length max_seq_len max_seq_length sequence_length block_size context_length",
        "precision": "dtype torch_dtype mixed_precision bf16 fp16",
        "activation_checkpointing": "gradient_checkpointing",
        "sequence_parallel": "sequence_parallel_size sp_size context_parallel context_parallel_size cp_size",
        "tensor_parallel": "tensor_parallel_size tensor_model_parallel_size tp tp_size",
        "checkpoint_every": "save_steps save_every save_interval checkpoint_interval",
        "keep_checkpoints": "save_total_limit",
        "eval_every": "eval_steps eval_interval",
        "log_every": "logging_steps log_interval",
        "model": "model_name model_name_or_path",
        "tokenizer": "tokenizer_name",
        "dataset": "dataset_name",
        "attention": "attn_implementation",
        "compile": "torch_compile",
        "seed": "random_seed",
        "nodes": "num_nodes nnodes",
        "gpus_per_node": "gpus num_gpus",
        "partition": "queue",
        "time": "walltime time_limit",
        "retry": "retries max_retries num_retries",
        "matrix": "axes parameters sweep grid param_grid search_space hyperparameters",
        "repeats": "seeds num_seeds replicates trials num_trials",
        "name": "campaign campaign_name experiment experiment_name",
        "env": "environment env_vars environment_variables",
        "command": "cmd program run script entrypoint",
        "dir": "output_dir out_dir",
        "workdir": "chdir cwd work_dir working_dir working_directory",
    }.items()
    for other in others.split()
}
"""The last part of our field's name, by another tool's name for it."""
_NO_ACCUMULATION: Final = "leave it out: accumulation follows from global_batch, micro_batch and the number of ranks"
_NOT_HERE: Final = {
    **dict.fromkeys(("grad_accum", "grad_accum_steps", "gradient_accumulation_steps"), _NO_ACCUMULATION),
    **dict.fromkeys(
        ("pipeline_parallel", "pipeline_parallel_size", "pp_size"),
        "the stack of layers is not split here: use zero_stage: 3, or tensor_parallel, which splits each layer",
    ),
}
"""Hints for fields of other tools without a field of ours."""


def our_name(name: str) -> str:
    """Return the last part of our field's name for a name of another tool; any other name as it is."""
    return _OURS.get(name.replace("-", "_"), name)


def meant(name: str, names: Iterable[str]) -> str | None:
    """Return our field for an unknown name, dotted as it is: another tool's name, or a misspelling."""
    names, plain = list(names), name.replace("-", "_")
    head, dot, last = plain.rpartition(".")
    ours = f"{head}{dot}{our_name(last)}"
    return ours if ours != plain and ours in names else nearest(plain, names)


def hint_for(name: str, names: Iterable[str], otherwise: _Else) -> str | _Else:
    """Return a hint for an unknown field: the field that it means, or else another hint."""
    ours = meant(name, names)
    other = _NOT_HERE.get(name.replace("-", "_").rpartition(".")[2])
    return other or (f'did you mean "{ours}"?' if ours else otherwise)
