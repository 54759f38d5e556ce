"""What tests share: builders, fake and private servers, conditions to wait for.

Campaigns to test with, from the smallest: `policy_world` has rows and views without a store, `worlds` one run in a
store with its spools, `cli_world` a run in each state, `planted` results that are known beforehand, `world_on_disk` a
campaign whose cluster the test plays. `attempt` is one attempt with real processes, `campaigns` runs a real campaign to
its end, `slurm_cluster` is a real Slurm.
"""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
"""Training scripts that tests run."""
LIGHT = Path(__file__).parent / "without_mlflow"
"""A folder for PYTHONPATH that makes the launcher start a second faster."""
