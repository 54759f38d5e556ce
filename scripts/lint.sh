#!/usr/bin/env bash
# Format, lint, types, import rules, and pages that are made from the code. BIN is the folder of the tools, TYPES what
# mypy checks instead of everything.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${BIN:-.venv/bin}")

"$bin/ruff" format --check .
"$bin/ruff" check .

# The root is the package dscampaign, whatever this folder is called: type checkers need to see it under that name.
mkdir -p .lint
ln -sfn .. .lint/dscampaign
(cd .lint && MYPYPATH=. "$bin/mypy" --config-file ../pyproject.toml --cache-dir ../.mypy_cache ${TYPES:--p dscampaign})
"$bin/lint-imports" --cache-dir .import_linter_cache
"$bin/python" scripts/write_docs.py --check
"$bin/python" scripts/budgets.py
