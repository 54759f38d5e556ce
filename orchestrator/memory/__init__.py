"""What a run needs of memory, and what may be changed so that it fits. May import failures and below."""
