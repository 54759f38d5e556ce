"""The store: schema, engine, ingest, queries, migrations."""
