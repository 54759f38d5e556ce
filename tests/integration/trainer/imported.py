"""What most ranks import, once for all of them: see ranks.py. Nothing of it may start a thread."""

import sys

sys.modules.setdefault("mlflow", None)  # type: ignore[arg-type] # as in jobs/trainer/__main__.py

import deepspeed  # noqa: E402
from transformers.models.gpt2 import modeling_gpt2  # noqa: E402, F401

from dscampaign.jobs.trainer import deepspeed_patches, train, weights  # noqa: E402, F401

# Ranks of a script, or without patches, would compile a reduction in shared memory, and load PyTorch's compiler.
deepspeed.ops.__compatible_ops__ = {}
deepspeed_patches.leave_muon_uncompiled()
