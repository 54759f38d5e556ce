"""What the reports of the published comparisons have: the columns of their tables, the words of their figures."""

from __future__ import annotations

from typing import Final


def _columns(text: str) -> frozenset[str]:
    return frozenset(text.split(" | "))


SECTIONS: Final = {
    "How fast?": _columns(
        "condition | median tokens/s | step (ms) | MFU | mean (ms) | σ of steps (ms) | "
        "p99 (ms) | tokens/s of a rank | samples/s | repeats | steps timed"
    ),
    "Same learning?": _columns("condition | held-out loss | final | first | reduction | lowest loss"),
    "Does it fit?": _columns(
        "condition | reserved (GB) | of usable | allocated (GB) | on the device (GB) | host (GB) | usable (GB)"
    ),
    "Where did the time go?": _columns("use | GPU-hours | share"),
    "What did the GPUs do?": _columns(
        "condition | utilisation (%) | power (W) | hottest (°C) | energy (kJ) | peak over 1 s (W) | samples"
    ),
}
"""By section, columns of its table in every report; no cell of them is empty."""

NEEDS_GPUS: Final = {
    *("MFU", "tokens/s of a rank", "on the device (GB)", "usable (GB)", "of usable", "host (GB)"),
    "memory of a GPU (GB)",
}
"""Columns and words that a campaign on CPUs lacks."""
ON_GPUS: Final = {"What did the GPUs do?"}
"""Sections that a campaign on CPUs lacks."""

TEMPLATES: Final = {
    # Test conditions with their status, final and best losses, iteration times, memory, data points, advice, logs.
    "loss-verification": _columns("condition | zero_stage | compile"),
    # Median and deviation of tokens/s and of the step time, peak memory, utilisation, the machine.
    "zero-precision-matrix": _columns("condition | precision | zero_stage"),
    # Model, parameters, GPUs, batch, epochs, samples, time, peak memory, losses and their reduction.
    "five-strategies": _columns("condition | engine | zero_stage | offload"),
    # The machine, throughput, power, heat.
    "gpu-telemetry": frozenset[str](),
    # Step time, tokens/s and memory of GPU and host for each stage, offload, batch and length.
    "zero-and-offload": _columns("condition | global_batch | seq_len | zero_stage | offload | samples"),
    # More GPUs, larger models, computing activations again.
    "five-strategies-next": _columns("condition | zero_stage | offload | activation_checkpointing"),
    # Memory and speed of three sizes.
    "llama-sizes": _columns("condition | model.hidden_size | offload"),
    # What each knob brings.
    "deepspeed-knobs": _columns(
        "condition | deepspeed.zero_optimization.overlap_comm | deepspeed.zero_optimization.contiguous_gradients | "
        "deepspeed.zero_optimization.reduce_bucket_size | deepspeed.zero_optimization.stage3_prefetch_bucket_size | "
        "deepspeed.zero_optimization.stage3_param_persistence_threshold | env.OMP_NUM_THREADS"
    ),
}
"""By template, after which published document it is, and what its conditions differ in."""

PER_WORKLOAD: Final = {"loss": {"loss (nats)", "optimizer steps"}, "speed_memory": {"tokens/s", "memory of a GPU (GB)"}}
"""Figures of each workload, with the words of their axes."""
