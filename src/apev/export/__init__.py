"""Policies as ONNX files, for programs that have neither torch nor apev: see `files.py` for what is in them."""

from apev.export.files import export

__all__ = ["export"]
