"""The versions of the schema, by Alembic."""
