"""scripts/plot_loss.py: from exported metrics to a figure."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts/plot_loss.py"


def plot(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, source, target], text=True, capture_output=True, check=False)


def test_every_run_with_a_loss_is_drawn(tmp_path: Path) -> None:
    source, target = tmp_path / "metrics.csv", tmp_path / "loss.png"
    source.write_text("run,generation,step,loss\nb,1,2,2.5\nb,1,1,3.5\na,1,1,3\na,1,2,\na,1,3,nan\n")
    done = plot(source, target)
    assert (done.returncode, done.stdout) == (0, f"2 runs, 4 steps -> {target}\n"), done.stderr
    assert target.read_bytes().startswith(b"\x89PNG")


def test_no_loss_at_all_is_said(tmp_path: Path) -> None:
    source = tmp_path / "metrics.csv"
    source.write_text("run,step,loss\na,1,\n")
    done = plot(source, tmp_path / "loss.png")
    assert done.returncode == 1
    assert done.stderr == f"{source}: no run has reported a loss\n"
