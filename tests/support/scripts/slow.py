"""A training script of somebody else: it knows nothing of this program but the file that it appends its metrics to.

It learns nothing, slowly, so that a test can say when it is at which step. Usage: slow.py STEPS STEP_S EVERY [heed]
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

steps, step_s, every = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
stops: list[float] = []
if "heed" in sys.argv:
    signal.signal(signal.SIGUSR2, lambda _signum, _frame: stops.append(time.time()))

saved = Path(os.environ["CAMPAIGN_CHECKPOINT_DIR"]) / "step.json"
first = json.loads(saved.read_text()) if saved.exists() else 0
rank = os.environ["RANK"]


def save(step: int) -> None:
    if rank == "0":
        temporary = saved.with_suffix(".tmp")
        temporary.write_text(json.dumps(step))
        temporary.rename(saved)


with Path(os.environ["CAMPAIGN_METRICS_FILE"]).open("a") as metrics:
    for step in range(first + 1, steps + 1):
        time.sleep(step_s)
        if rank == "0":
            metrics.write(json.dumps({"step": step, "ts": time.time(), "loss": 1 / step, "generation": 1}) + "\n")
            metrics.flush()
        if step % every == 0 or step == steps or stops:
            save(step)
        if stops:
            while rank != "0" and (not saved.exists() or saved.stat().st_mtime < stops[0]):
                time.sleep(0.05)  # a rank that has left ends the others, also the one that saves
            sys.exit(85)
