"""What is measured, and for how long at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Plan:
    """What is measured, and for how long at most.

    Attributes:
        sizes: micro-batches of the last part, beside the divisor above the settled one.
        limits_s: of each part.
        total_s: of all parts.
    """

    train: Mapping[str, Any]
    local: Mapping[str, Any]
    env: Mapping[str, str]
    seeds: tuple[int, ...]
    other_seeds: tuple[int, ...]
    sizes: tuple[int, ...]
    limits_s: Mapping[str, float]
    total_s: float

    @property
    def batch(self) -> int:
        """Samples of one step, and of the only rank."""
        return int(self.train["global_batch"])


def gpu_plan(gpu_memory: str) -> Plan:
    """GPT-2 124M, 1,024 tokens a sample, 240 samples a step: a number with many divisors."""
    model = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50304}
    train = {"model": model, "seq_len": 1024, "global_batch": 240, "steps": 25, "warmup_steps": 5, "lr": 6e-4}
    return Plan(
        train={**train, "precision": "bf16", "zero_stage": 1, "eval_batches": 1},
        local={"parallel": 1, "gpu_mem_per_process": gpu_memory},
        env={},
        seeds=(42, 43, 44, 45, 46),
        other_seeds=(1043, 1044, 1045),
        sizes=(8, 24, 48),
        limits_s={"siblings": 330.0, "repeats": 220.0, "sizes": 140.0},
        total_s=565.0,
    )


def tiny_plan() -> Plan:
    """The same on a CPU in a minute or two; what a rank may use is a limit on its address space."""
    model = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 1, "n_positions": 64, "vocab_size": 8192}
    train = {"model": model, "seq_len": 64, "global_batch": 240, "steps": 3, "lr": 1e-3}
    return Plan(
        train={**train, "precision": "fp32", "zero_stage": 0, "eval_batches": 1},
        local={"parallel": 1, "mem_per_process": "2200M"},
        # threads have stacks and pools of their own, which would count
        env={"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
        seeds=(42, 43),
        other_seeds=(),
        sizes=(),
        limits_s={"siblings": 600.0, "repeats": 300.0, "sizes": 300.0},
        total_s=1200.0,
    )
