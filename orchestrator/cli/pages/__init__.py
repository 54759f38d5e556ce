"""Values → text. Pure: no I/O, no clock, so that every page has a test."""
