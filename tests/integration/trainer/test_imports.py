"""What a rank loads."""

import subprocess
import sys
from importlib.metadata import version


def test_a_rank_does_not_load_mlflow_though_deepspeed_would() -> None:
    assert version("mlflow-skinny")
    code = "import sys, {first}deepspeed; print(sys.modules.get('mlflow') is not None)"
    loaded = [
        subprocess.run([sys.executable, "-c", code.format(first=first)], capture_output=True, text=True, check=True)
        for first in ("", "dscampaign.jobs.trainer.__main__, ")
    ]
    assert [done.stdout.split()[-1] for done in loaded] == ["True", "False"]
