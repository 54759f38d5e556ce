"""Two ranks that wait for each other at every step, as in a collective. The first attempt hangs: rank 1 never comes.

Usage: hang.py STEPS HANG_AT
"""

import os
import sys
import time
from pathlib import Path

from dscampaign import phase, progress, report

steps, hang_at = int(sys.argv[1]), int(sys.argv[2])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
first = os.environ["CAMPAIGN_GENERATION"] == "1"
met = Path(os.environ["CAMPAIGN_ATTEMPT_DIR"], "met")
met.mkdir(exist_ok=True)

phase("train")
for step in range(1, steps + 1):
    if first and rank == 1 and step == hang_at:
        time.sleep(3600)
    progress(step)
    (met / f"{step}-{rank}").touch()
    while len(list(met.glob(f"{step}-*"))) < world:
        time.sleep(0.01)
    report(step, loss=1.0 / step, step_time=0.3)
    time.sleep(0.3)  # the agent looks twice a second
