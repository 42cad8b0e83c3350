"""Logs in files, one module a format; `io.py` picks by the name."""
