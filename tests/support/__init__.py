"""What tests share: builders, fake and private servers, conditions to wait for."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
"""Training scripts that tests run."""
