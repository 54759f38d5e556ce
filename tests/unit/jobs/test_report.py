"""What a training script calls."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

from dscampaign.db.ingest.lines import parse
from dscampaign.jobs import report as module

SCRIPT = Path(module.__file__)
LOADED_BY_PATH = f"import importlib.util as u; s = u.spec_from_file_location('r', {str(SCRIPT)!r}); "
PREAMBLE = LOADED_BY_PATH + "r = u.module_from_spec(s); s.loader.exec_module(r)\n"


def run(tmp_path: Path, script: str, **env: str) -> tuple[str, list[dict[str, object]]]:
    """Runs a script that finds the module as ``r``; returns its output and what it reported."""
    spool = tmp_path / "metrics.jsonl"
    variables = {"CAMPAIGN_METRICS_FILE": str(spool), "CAMPAIGN_STOP_FILE": str(tmp_path / "stop"), **env}
    done = subprocess.run(
        [sys.executable, "-S", "-c", PREAMBLE + script],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    text = spool.read_text() if spool.exists() else ""
    assert text == "" or text.endswith("\n")
    return done.stdout, [json.loads(line) for line in text.splitlines()]


def test_reports_lines(tmp_path: Path) -> None:
    script = "r.report(1, loss=2, lr=1e-4); r.report(1, eval_loss=3.5); r.event('memory', gb=4, gpu='x')"
    _, lines = run(tmp_path, script)
    times = [line.pop("ts") for line in lines]
    assert lines == [
        {"step": 1, "loss": 2, "lr": 1e-4},
        {"step": 1, "eval_loss": 3.5},
        {"event": "memory", "gb": 4, "gpu": "x"},
    ]
    assert times == sorted(times)  # type: ignore[type-var]


def test_takes_whatever_is_a_number(tmp_path: Path) -> None:
    script = "from fractions import Fraction as F\nr.report(1, a=F(1, 2), b=True, c=float('nan'), d=float('-inf'))"
    _, [line] = run(tmp_path, script)
    assert (line["a"], line["b"], line["d"]) == (0.5, 1.0, -math.inf)
    assert math.isnan(line["c"])  # type: ignore[arg-type]


def test_a_value_that_cannot_be_in_its_unit_is_left_out_with_a_warning(tmp_path: Path) -> None:
    call = "r.report(1, loss=3, mem_reserved=75_800_000_000)"
    output, lines = run(tmp_path, f"import sys\nsys.stderr = sys.stdout\nfor i in range(3): {call}")
    [warning] = output.splitlines()
    assert "expected GB" in warning
    [event] = [line for line in lines if "event" in line]
    assert f"dscampaign.report: {event['message']}" == warning
    assert [(line["loss"], "mem_reserved" in line) for line in lines if "step" in line] == [(3, False)] * 3


def test_does_nothing_outside_a_campaign(tmp_path: Path) -> None:
    script = (
        "import signal; r.report(1, loss=1); r.sync(); print(r.should_stop(), signal.getsignal(signal.SIGUSR2) == 0)"
    )
    assert run(tmp_path, script, CAMPAIGN_METRICS_FILE="", CAMPAIGN_STOP_FILE="") == ("False True\n", [])


def test_nothing_is_lost_by_a_kill(tmp_path: Path) -> None:
    script = "import os\nfor step in range(1, 1001): r.report(step, loss=step)\nos.fork() or os.kill(os.getpid(), 9)"
    _, lines = run(tmp_path, script)
    assert [line["step"] for line in lines] == list(range(1, 1001))


def test_stops_on_a_signal_and_goes_on_until_asked(tmp_path: Path) -> None:
    script = "import os, signal\nprint(r.should_stop()); os.kill(os.getpid(), signal.SIGUSR2); print(r.should_stop())"
    assert run(tmp_path, script)[0] == "False\nTrue\n"


def test_looks_for_the_stop_file_now_and_then(tmp_path: Path) -> None:
    script = """
import os, time
clock = [100.0]
time.monotonic = lambda: clock[0]
print(r.should_stop())
open(os.environ["CAMPAIGN_STOP_FILE"], "w").close()
clock[0] += 0.9
print(r.should_stop())
clock[0] += 0.2
print(r.should_stop())
"""
    assert run(tmp_path, script)[0] == "False\nFalse\nTrue\n"


def test_a_line_that_broke_off_spoils_no_other(tmp_path: Path) -> None:
    script = """
import os
real, count = os.write, [0]
def full(descriptor, data):
    count[0] += 1
    if count[0] == 3: raise OSError(28, 'No space left on device')
    return real(descriptor, data[:10] if count[0] == 2 else data)
os.write = full
for step in (1, 2, 3):
    try: r.report(step, loss=1)
    except OSError: print(step)
"""
    spool = tmp_path / "metrics.jsonl"
    command = [sys.executable, "-S", "-c", PREAMBLE + script]
    env = {**os.environ, "CAMPAIGN_METRICS_FILE": str(spool)}
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout == "2\n"
    found = parse(spool.read_bytes(), 0)
    assert (sorted(found.steps), len(found.bad)) == ([1, 3], 1)
