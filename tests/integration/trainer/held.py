"""What tensors DeepSpeed holds while it trains, for each ZeRO stage and precision, in bytes for each parameter.

Usage, as a rank: held.py RESULT.json
"""

import gc
import json
import os
import sys
import time
from itertools import product
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

from dscampaign.jobs.shared.ds_config import render
from dscampaign.jobs.trainer.engine import leave_process_group
from dscampaign.orchestrator.spec.model import TrainConfig

WIDTH, LAYERS = 128, 64
PARAMETERS = LAYERS * WIDTH * WIDTH
STEADY = 4


def held() -> float:
    """Bytes that the tensors of this process take for each parameter, once that stays the same for a while.

    A thread of gloo lets go of a collective's tensors a moment after the collective is over.
    """
    seen = [_held()]
    while len(seen) < STEADY or len(set(seen[-STEADY:])) > 1:
        time.sleep(0.02)
        seen.append(_held())
    return seen[-1]


def _held() -> float:
    """Those that share memory are counted once."""
    gc.collect()
    tensors = [found for found in gc.get_objects() if isinstance(found, torch.Tensor)]
    tensors += [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values()) / PARAMETERS


def trained(stage: int, precision: str, accumulation: int) -> float:
    """What one optimizer step needs: what is left of it, and the gradients that it has given back."""
    train = TrainConfig.model_validate({"precision": precision, "zero_stage": stage}).model_dump()
    # No buffer larger than a layer, and no layer so small that every rank keeps all of it.
    zero = {"reduce_bucket_size": WIDTH * WIDTH, "stage3_param_persistence_threshold": 0}
    small = {"zero_optimization": zero, "optimizer": {"params": {"fused": False}}}
    world = dist.get_world_size()
    config = render(train, micro_batch=1, accumulation=accumulation, world_size=world, overrides=small)
    before = held()
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    begun = held()
    inputs = torch.ones(1, WIDTH, dtype=next(engine.module.parameters()).dtype)
    gradients = 0.0
    for _ in range(accumulation):
        engine.backward(engine(inputs).float().sum())
        gradients = max(gradients, held() - begun)
        engine.step()
    needed = held() - before + gradients
    engine.destroy()
    return needed


if __name__ == "__main__":
    deepspeed.ops.__compatible_ops__ = {}  # as jobs/trainer/engine.py has it
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    gc.freeze()  # the imports' objects, a million of them, hold no tensor: `held` need not look at them
    found = [[*case, trained(*case)] for case in product(range(4), ("fp32", "bf16"), (1, 2))]
    if os.environ["RANK"] == "0":
        Path(sys.argv[1]).write_text(json.dumps(found))
    dist.barrier()
    leave_process_group()
