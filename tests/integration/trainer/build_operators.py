"""Builds what DeepSpeed compiles for the tests, before they run: no test then waits for a compiler.

That is the shared memory that DeepSpeed uses between CPU ranks of scripts of one's own (the built-in trainer does
without) and, with the argument `nvme`, the operator of test_nvme.py. In a new environment it takes some minutes; where
they are built, a few seconds.
"""

import os
import sys
from pathlib import Path

from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

from dscampaign.jobs.agent import cleanup
from dscampaign.jobs.trainer import engine
from dscampaign.tests.integration.trainer.attempts import train_config

if __name__ == "__main__":
    if builds := os.environ.get("TORCH_EXTENSIONS_DIR"):
        cleanup.clear_build_locks(Path(builds))  # of a build that was interrupted
    ShareMemCommBuilder().load(verbose=False)
    if "nvme" in sys.argv[1:]:
        on_disk = {"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "unused"}}}
        engine.build_operators(train_config(zero_stage=3, offload="nvme", nvme_path="unused"), on_disk)
