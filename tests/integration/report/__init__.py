"""The command `campaign report` from a planted store to pages, files and figures."""
