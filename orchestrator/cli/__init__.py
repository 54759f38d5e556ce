"""The command line: parse, one call into a package below, print. Nothing imports it."""
