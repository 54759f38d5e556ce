#!/usr/bin/env bash
# A small campaign on this machine, from spec to report. Everything lies under demo/ and can be run again: what is
# finished is kept.
set -euo pipefail
cd "$(dirname "$0")/.."

# Two ranks need two GPUs; with fewer the demo trains on the CPU.
gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l || true)
[ "$gpus" -ge 2 ] || export CUDA_VISIBLE_DEVICES=""

echo "== submit: plan, start, watch until everything is settled, then the status table"
code=0
campaign submit examples/quickstart.yaml --dir demo --yes --watch || code=$?

echo "== report"
campaign report quickstart --dir demo --output demo/report

echo
echo "Page     demo/report/report.html"
echo "Figures  demo/report/figures/"
echo "Logs     demo/quickstart/runs/RUN/g0001/logs/"
exit "$code"
