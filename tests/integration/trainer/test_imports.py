"""What a rank loads."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from dscampaign.tests.integration.trainer.attempts import Attempt


@pytest.mark.nightly
def test_a_rank_does_not_load_mlflow_though_deepspeed_would() -> None:
    assert version("mlflow-skinny")
    code = "import sys, {first}deepspeed; print(sys.modules.get('mlflow') is not None)"
    loaded = [
        subprocess.run([sys.executable, "-c", code.format(first=first)], capture_output=True, text=True, check=True)
        for first in ("", "dscampaign.jobs.trainer.__main__, ")
    ]
    assert [done.stdout.split()[-1] for done in loaded] == ["True", "False"]


@pytest.mark.nightly
@pytest.mark.training
def test_a_rank_that_compiles_nothing_does_not_load_the_compiler(data_dir: Path, tmp_path: Path) -> None:
    """DeepSpeed would, to see whether the optimizer is Muon."""
    script = tmp_path / "train.py"
    script.write_text("""
import sys
from dscampaign.jobs.trainer.engine import leave_process_group
from dscampaign.jobs.trainer.train import main
main()
names = ("deepspeed.runtime.zero.muon.muon_optimizer", "torch._inductor.compile_fx")
print("LOADED", [name in sys.modules for name in names])
leave_process_group()
""")
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    environment = Attempt(tmp_path / "run").prepare(data_dir, world_size=1, steps=1, zero_stage=3)
    alone = {**os.environ, **environment, **ranks}
    done = subprocess.run([sys.executable, script], env=alone, capture_output=True, text=True, check=True)
    assert "LOADED [True, False]" in done.stdout
