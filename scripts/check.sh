#!/usr/bin/env bash
# What can be checked in two minutes and without torch, DeepSpeed, Slurm or a database server. BIN is the folder of the
# tools. Types of the built-in trainer need torch: `make lint` checks those too.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${BIN:-.venv/bin}")

types=(orchestrator db sbatch jobs.agent jobs.forward jobs.probe jobs.shared jobs.guard jobs.rank jobs.report tests.unit tests.support)
TYPES="$(printf -- '-p dscampaign.%s ' "${types[@]}") --follow-imports=silent" BIN=$bin scripts/lint.sh
"$bin/pytest" tests/unit --pure -m "not nightly" -q -n 2 --dist worksteal "$@"
