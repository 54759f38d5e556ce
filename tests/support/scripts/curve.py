"""A training that computes nothing and keeps a checkpoint of its own; its first attempt dies after step CRASH_AT.

Usage: curve.py STEPS CRASH_AT EVERY STEP_S
"""

import os
import sys
import time
from pathlib import Path

from dscampaign import report

steps, crash_at, every, step_s = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
generation = int(os.environ["CAMPAIGN_GENERATION"])
saved = Path(os.environ["CAMPAIGN_CHECKPOINT_DIR"], "step")

done = int(saved.read_text()) if saved.exists() else 0
for step in range(done + 1, steps + 1):
    time.sleep(step_s)
    report(step, loss=100.0 * generation + step)
    if step == crash_at and generation == 1:
        raise ConnectionResetError("lost its peer")
    if step % every == 0:
        saved.write_text(str(step))
