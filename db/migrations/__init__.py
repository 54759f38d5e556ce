"""The versions of the schema, by Alembic. May import `db.schema`."""
