"""The store: engine, tables, queries, upgrades. Imports nothing of `orchestrator` and `jobs`."""
