"""The store: engine, tables, queries, upgrades. May import `files`."""
