"""`apev ...`: one file a command, each a dataclass whose fields are the options and whose docstrings are the help."""
