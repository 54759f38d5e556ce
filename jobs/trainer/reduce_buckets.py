"""DeepCompile with ZeRO 1 and accumulation, which aborts in its second step as DeepSpeed 0.19.8 has it.

At the end of each backward pass DeepSpeed drops the buckets in which gradients are reduced. In a pass that only
accumulates nothing is reduced, so no bucket is made again; but from the second step on its end resets one that is not
there: ``Assertion `hasKey(current_buffer_, scalar_type)' failed``. Buckets that stay are always there, as in the
versions before they were dropped. That costs their memory while the optimizer steps.
"""

from __future__ import annotations

from deepspeed.compile.passes import zero_1_and_2_compile

from .config import TrainConfig

_DECIDES = "should_release_reduce_buckets"


def keep_where_needed(config: TrainConfig) -> None:
    """Makes compiled backward passes of this process keep their buckets; call it before anything is compiled."""
    needed = config.deepcompile and config.zero_stage == 1 and config.accumulation > 1
    if needed and hasattr(zero_1_and_2_compile, _DECIDES):  # another version does it in its own way
        setattr(zero_1_and_2_compile, _DECIDES, _never)


def _never(graph_order: object, graph_id: int) -> bool:  # noqa: ARG001 - as DeepSpeed's
    return False
