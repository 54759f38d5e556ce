"""Alembic's entry point: runs the migrations on the connection that `upgrade` hands over, in its transaction."""

from alembic import context

from dscampaign.db.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
)
context.run_migrations()
