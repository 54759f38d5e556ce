"""A campaign while it runs: as a page and in the terminal."""
