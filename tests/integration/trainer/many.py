"""Trains several attempts one after another in the same ranks, so that start-up is paid once.

Usage, as a rank: many.py ENVIRONMENTS.json
"""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from dscampaign.jobs import report
from dscampaign.jobs.trainer import weights
from dscampaign.jobs.trainer.engine import leave_process_group
from dscampaign.jobs.trainer.train import main

if __name__ == "__main__":
    weights.WHOLE_BYTES = 10_000  # so that the tests' small models are divided several times, as large ones are
    CPU_Accelerator.is_fp16_supported = lambda _: True  # DeepSpeed says no where it is only slow
    if backend := os.environ.get("COMPILE_BACKEND"):
        compiles: Any = torch.compile
        torch.compile = lambda *args, **options: compiles(*args, **{**options, "backend": backend})
    for environment in json.loads(Path(sys.argv[1]).read_text()):
        os.environ.update(environment)
        importlib.reload(report)  # it reads the environment once, as a training script would have it
        main()
    dist.barrier()
    leave_process_group()
