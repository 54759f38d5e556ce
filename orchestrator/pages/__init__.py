"""The pages of the terminal: values become text. Pure: no I/O and no clock."""
