"""The report as a page, as data and as figures."""
