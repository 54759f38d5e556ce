"""Login node: what should run, what runs, what to do about it, and what came out."""
