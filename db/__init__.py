"""The store: engine, tables, queries, upgrades."""
