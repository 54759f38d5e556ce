"""Trains a model of several blocks under ZeRO 3, eager and with compiled blocks: losses, and how many graphs it took.

Usage, as a rank: compiled_blocks.py RESULT.json
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

from dscampaign.jobs.shared.ds_config import render
from dscampaign.jobs.trainer.engine import advance, create_engine, leave_process_group
from dscampaign.jobs.trainer.model import NextTokenLoss
from dscampaign.tests.integration.trainer.attempts import LLAMA, train_config, train_json

VOCABULARY, BLOCKS, STEPS = 64, 12, 3  # more blocks than the compiler makes variants of a function


def losses(*, compiled: bool) -> list[float]:
    """Of some steps from the same weights on the same tokens."""
    changes: dict[str, Any] = {"zero_stage": 3, "compile": compiled, "global_batch": 4}
    small = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}  # else all is small enough to stay whole
    given: dict[str, Any] = {
        "micro_batch": 2,
        "accumulation": 1,
        "world_size": dist.get_world_size(),
        "overrides": small,
    }
    torch.manual_seed(0)
    shape = {**LLAMA, "num_hidden_layers": BLOCKS, "vocab_size": VOCABULARY}
    model = NextTokenLoss(AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape)), VOCABULARY)
    engine = create_engine(model, train_config(**changes), render(train_json(**changes), **given))
    tokens = torch.randint(VOCABULARY, (STEPS, 2, 17), generator=torch.Generator().manual_seed(dist.get_rank()))
    found = []
    for batch in tokens:
        loss = engine(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        advance(engine, loss)
        found.append(float(loss.detach()))
    return found


if __name__ == "__main__":
    deepspeed.ops.__compatible_ops__ = {}  # as jobs/trainer/engine.py has it
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    graphs: list[torch.fx.GraphModule] = []

    def counted(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Any:
        """A compiler that runs what it is given as it is."""
        graphs.append(graph)
        return graph.forward

    eager = losses(compiled=False)
    torch.compile = partial(torch.compile, backend=counted)
    compiled = losses(compiled=True)
    if os.environ["RANK"] == "0":
        Path(sys.argv[1]).write_text(json.dumps({"eager": eager, "compiled": compiled, "graphs": len(graphs)}))
    dist.barrier()
    leave_process_group()
