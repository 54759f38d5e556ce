"""The first schema of a release. An empty database never passes here: it gets the tables of `db/schema.py`."""

revision = "0004"
down_revision = None


def upgrade() -> None:
    """Do nothing: stores with an earlier schema are refused."""
