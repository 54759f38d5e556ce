"""Names of our fields in other tools. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from dscampaign.orchestrator.errors import nearest

_Else = TypeVar("_Else", str, str | None)

_OURS: Final = {
    other: ours
    for ours, _, others in (
        line.partition(": ")
        for line in """lr: learning_rate max_lr
schedule: lr_scheduler lr_scheduler_type
warmup_steps: warmup num_warmup_steps
grad_clip: max_grad_norm gradient_clipping
global_batch: batch_size train_batch_size
micro_batch: per_device_train_batch_size train_micro_batch_size_per_gpu
steps: max_steps num_training_steps train_iters max_iters
epochs: num_train_epochs
seq_len: max_length max_seq_length block_size context_length
precision: dtype torch_dtype mixed_precision bf16 fp16
activation_checkpointing: gradient_checkpointing
checkpoint_every: save_steps
eval_every: eval_steps
log_every: logging_steps
model: model_name model_name_or_path
attention: attn_implementation
nodes: num_nodes nnodes
gpus_per_node: gpus num_gpus
partition: queue
time: walltime
matrix: parameters sweep grid
repeats: seeds trials
env: environment
command: cmd program script entrypoint
dir: output_dir
workdir: chdir cwd""".splitlines()
    )
    for other in others.split()
}
"""The last part of our field's name, by another tool's name for it."""
_ACCUMULATION: Final = ("grad_accum", "gradient_accumulation_steps")


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
    if name.replace("-", "_").rpartition(".")[2] in _ACCUMULATION:
        return "leave it out: accumulation follows from global_batch, micro_batch and the number of ranks"
    return f'did you mean "{ours}"?' if (ours := meant(name, names)) else otherwise
