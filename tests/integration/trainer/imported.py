"""What most ranks import, once for all of them: see ranks.py. Nothing of it may start a thread."""

import sys

sys.modules.setdefault("mlflow", None)  # type: ignore[arg-type] # as in jobs/trainer/__main__.py

from transformers.models.gpt2 import modeling_gpt2  # noqa: E402, F401

from dscampaign.jobs.trainer import train, weights  # noqa: E402, F401
