"""What the reports of the published comparisons have: the headers of their tables, the words of their figures."""

from __future__ import annotations

from typing import Final

Header = tuple[str, ...]


def _words(text: str) -> Header:
    return tuple(text.split(" | "))


CONDITIONS: Final = _words(
    "condition | completed | tries in all | tokens/s | interval | × baseline | speed | held-out loss | Δ loss | loss | "
    "memory | MFU"
)
ANSWERS: Final = _words("for | use | figure | ahead of | by | which is")
EFFECTS: Final = _words("change | effect on speed | on memory | on loss | pairs | of | which is")
COMMON: Final = _words("in all conditions | value")
LOSS: Final = _words("condition | first | final | reduction | best step | held out")
SPEED: Final = _words(
    "condition | step ms | mean | σ of steps | ± ms | IQR of steps | p99 | tokens/s | ± tokens/s | of a rank | "
    "samples/s | tokens/s per GB | MFU | repeats | steps timed | window | warm-up steps | warm-up"
)
INPUTS: Final = _words(
    "condition | device | precision | tokens/s of a rank | parameters | layers | width | length | FLOP a token | "
    "peak TFLOP/s | MFU"
)
MEMORY: Final = _words("condition | allocated | reserved | device | usable | peak of usable | beside baseline | host")
GPUS: Final = _words("condition | utilisation | power | peak | peak over 1 s | coolest | hottest | energy kJ")
SAMPLED: Final = _words("CPU load | samples | every")
EACH_GPU: Final = _words(
    "run | node | GPU | utilisation | power | peak | of limit | peak over 1 s | coolest | hottest | memory | energy kJ"
)
QUALITY: Final = _words(
    "run | state | steps expected | received | losses | times | memories | waited for data | remarks"
)
MACHINES: Final = _words("node | GPUs | GPU | GPU memory | power limit | host memory limit | runs")
PROCESSORS: Final = _words("nodes | CPU | cores used | system | kernel | CPU load")
LOGS: Final = _words("run | wandb | logs of its newest attempt")
J: Final = ("J/token",)
NEEDS_GPUS: Final = {
    *("MFU", "J/token", "of a rank", "tokens/s per GB", "device", "usable", "peak of usable", "host", "wandb"),
    *("GPUs", "GPU", "GPU memory", "power limit", "host memory limit"),
}
"""Columns and words that a campaign on CPUs lacks, and the one of a tool that it may forward to."""
SPARSE: Final = {"speed", "Δ loss", "loss", "beside baseline"}
"""Columns without a word on the baseline."""


def without(header: Header, *names: str) -> Header:
    """Some columns left out."""
    assert set(names) <= set(header)
    return tuple(name for name in header if name not in names)


def _expected(setup: str, conditions: list[Header], **others: Header) -> list[Header]:
    """Headers of all tables but those of the software, in their order; the names of the others by section."""
    return [
        *conditions,
        *[others.get("effects", EFFECTS)]
        * sum(header[0] == "condition" for header in conditions if "Δ loss" in header),
        *([others["sweep"]] if "sweep" in others else []),
        LOSS,
        others.get("speed", SPEED),
        others.get("memory", MEMORY),
        ("what", "GPU-hours", "share"),
        others.get("gpus", GPUS) + SAMPLED,
        EACH_GPU,
        *([_words(setup)] if setup else []),
        others.get("common", COMMON),
        INPUTS,
        others.get("quality", QUALITY),
        ("campaign", "value"),
        MACHINES,
        PROCESSORS,
        LOGS,
    ]


ON_GPUS: Final = {INPUTS, EACH_GPU, GPUS + SAMPLED, GPUS + J + SAMPLED}
"""Tables that a campaign on CPUs lacks."""
ALONE: Final = without(CONDITIONS, "speed", "Δ loss", "loss")
ONCE: Final = without(CONDITIONS, "interval") + J
TEMPLATES: Final = {
    # Test conditions with their status, final and best losses, iteration times, memory, data points, advice, logs.
    "loss-verification": _expected(
        "condition | ZeRO | compile", [CONDITIONS], quality=without(QUALITY, "steps expected")
    ),
    # Median and deviation of tokens/s and of the step time, peak memory, utilisation, the machine.
    "zero-precision-matrix": _expected("condition | precision | ZeRO", [CONDITIONS]),
    # Model, parameters, GPUs, batch, epochs, samples, time, peak memory, losses and their reduction.
    "five-strategies": _expected(
        "condition | model | ZeRO | offload", [ANSWERS, CONDITIONS, CONDITIONS + J], gpus=GPUS + J
    ),
    # The machine, throughput, power, heat.
    "gpu-telemetry": _expected(
        "",
        [ALONE + J],
        common=("field", "value"),
        memory=without(MEMORY, "beside baseline"),
        gpus=GPUS + J,
    ),
    # Step time, tokens/s and memory of GPU and host for each stage, offload, batch and length.
    "zero-and-offload": _expected(
        "condition | model | batch | length | samples | ZeRO | offload",
        [ANSWERS, *[ONCE] * 4],
        speed=without(SPEED, "± ms", "± tokens/s"),
        gpus=GPUS + J,
        sweep=_words("of | seq_len | tokens/s | step time (ms) | memory (GB) | J/token"),
    ),
    # More GPUs, larger models, computing activations again.
    "five-strategies-next": _expected(
        "condition | model | ZeRO | offload | activation checkpointing",
        [ANSWERS, CONDITIONS, CONDITIONS + J, CONDITIONS],
        gpus=GPUS + J,
    ),
    # Memory and speed of three sizes.
    "llama-sizes": _expected(
        "condition | model | offload",
        [ANSWERS, ALONE, ALONE + J, CONDITIONS + J],
        gpus=GPUS + J,
    ),
    # What each knob brings.
    "deepspeed-knobs": _expected(
        "condition | deepspeed.zero_optimization.overlap_comm | deepspeed.zero_optimization.contiguous_gradients | "
        "deepspeed.zero_optimization.reduce_bucket_size | deepspeed.zero_optimization.stage3_prefetch_bucket_size | "
        "deepspeed.zero_optimization.stage3_param_persistence_threshold | env.OMP_NUM_THREADS",
        [CONDITIONS],
    ),
}
"""By template, after which published document it is, and the headers of its report's tables."""

SWEEPS: Final = {"zero-and-offload": {"sweep_1"}}
"""By template, its figures along an axis."""

COMMON_FIELDS: Final = {
    "model", "parameters", "data", "nodes × ranks", "batch", "tokens a step", "length", "steps", "samples", "precision",
    "ZeRO", "offload", "activation checkpointing", "compile", "lr", "schedule", "weight_decay", "seed",
}  # fmt: skip
PER_WORKLOAD: Final = {
    "speed_memory": {"memory reserved (GB, highest of any rank)", "tokens per second"},
    "loss": {"loss (nats)", "optimizer steps", "million tokens"},
    "loss_difference": {"loss minus the baseline's (nats)", "optimizer steps"},
    "step_time": {"step time (ms)"},
    "speed": {"tokens per second"},
    "memory": {"GB, highest of any rank", "allocated", "reserved", "device", "usable"},
}
"""Figures of each workload, with the words of their axes and legends."""
