"""The first schema. An empty database never passes here: it gets the tables of `db/schema.py` as they are now."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Nothing came before it."""
