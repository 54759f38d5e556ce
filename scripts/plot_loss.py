"""Draws the loss of every run of a campaign over its steps: plot_loss.py METRICS.csv OUT.png.

The input is what `campaign export` writes; only its columns run, step and loss are read.
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
from matplotlib import pyplot as plt

Curve = list[tuple[int, float]]


def main(source: str, target: str) -> None:
    """Reads the metrics and writes the figure."""
    curves = read_curves(Path(source))
    if not curves:
        sys.exit(f"{source}: no run has reported a loss")
    draw(curves, Path(target))
    print(f"{len(curves)} runs, {sum(map(len, curves.values()))} steps -> {target}")


def read_curves(path: Path) -> dict[str, Curve]:
    """Each run's (step, loss) by step; a step without a loss is left out."""
    curves: defaultdict[str, Curve] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["loss"]:
                curves[row["run"]].append((int(row["step"]), float(row["loss"])))
    return {run: sorted(points) for run, points in sorted(curves.items())}


def draw(curves: dict[str, Curve], target: Path) -> None:
    """One line a run. Runs that agree lie on each other, so later lines are thinner and dashed."""
    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    for place, (run, points) in enumerate(curves.items()):
        later = place / len(curves)
        axes.plot(*zip(*points, strict=True), label=run, linewidth=3.5 - 2.5 * later, linestyle=(0, (4, 3 * later)))
    axes.set(xlabel="optimizer step", ylabel="training loss (nats per token)")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small", frameon=False)
    figure.savefig(target, dpi=150)


if __name__ == "__main__":
    main(*sys.argv[1:])
