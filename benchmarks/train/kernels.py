"""Where a step's time goes on the GPU: the kernels of a trace, in groups.

    python benchmarks/train/kernels.py TRACE.json.gz [--steps N]

The trace is what `train.profile_at` leaves in an attempt's folder. Times are those of kernels and copies, whose streams
may overlap; `idle` is the part of the recording, from the first kernel to the end of the last, in which none ran.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

GROUPS: Final = (
    ("attention", r"flash|fmha|sdpa|attention"),
    ("matrix products", r"gemm|nvjet|cutlass|cublas|wgrad|dgrad"),
    ("communication", r"nccl"),
    ("optimizer", r"multi_tensor|adam"),
    ("compiled: loss", r"triton.*(?:logsumexp|exp_|gather)"),
    ("compiled: the rest", r"triton"),
    ("copies", r"memcpy|memset|copy"),
    ("not compiled", r""),
)
"""The first that a kernel's name matches is its group."""
OF_THE_DEVICE: Final = {"kernel", "gpu_memcpy", "gpu_memset"}


def main() -> None:
    """Prints the groups, and the kernels that take the most."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps in the trace. Default: 3")
    parser.add_argument("--kernels", type=int, default=12, help="kernels that are shown. Default: 12")
    options = parser.parse_args()
    with gzip.open(options.trace, "rt") as lines:
        events = [each for each in json.load(lines)["traceEvents"] if each.get("cat") in OF_THE_DEVICE]
    if not events:
        parser.error(f"{options.trace} has no kernels: was it recorded on a GPU?")
    print("\n".join(page(events, options.steps, options.kernels)))


def page(events: Iterable[dict[str, Any]], steps: int, kernels: int) -> list[str]:
    """The table's lines; times in milliseconds a step."""
    spans = sorted((each["ts"], each["ts"] + each["dur"]) for each in events)
    length_us = max(end for _, end in spans) - spans[0][0]
    by_name, counts = Counter[str](), Counter[str]()
    for each in events:
        by_name[each["name"]] += each["dur"]
        counts[each["name"]] += 1
    by_group = Counter[str]()
    for name, took_us in by_name.items():
        by_group[group(name)] += took_us
    by_group["idle"] = length_us - busy_us(spans)
    lines = [f"{length_us / steps / 1e3:9.2f} ms a step, {len(spans) / steps:.0f} kernels and copies"]
    lines += [f"{us / steps / 1e3:9.2f} ms {us / length_us:6.1%}  {name}" for name, us in by_group.most_common()]
    top = by_name.most_common(kernels)
    return [*lines, "", *(f"{us / steps / 1e3:9.2f} ms {counts[n] / steps:5.0f} x  {n[:110]}" for n, us in top)]


def group(name: str) -> str:
    """Of a kernel."""
    return next(group for group, pattern in GROUPS if re.search(pattern, name, re.IGNORECASE))


def busy_us(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of ``spans``, which are sorted."""
    total, until = 0.0, float("-inf")
    for begin, end in spans:
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


if __name__ == "__main__":
    main()
