"""The report as a page, as data and as figures. May import `compare` and `measure`."""
