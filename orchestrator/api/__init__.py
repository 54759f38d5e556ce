"""The commands without a terminal: what the command line, Python and agents call."""
