"""Worlds: the kinds of contexts that a log holds, found without labels, and models that tell them apart."""

from apev.worlds.find import NO_KIND, Found, find
from apev.worlds.models import WorldModels

__all__ = ["NO_KIND", "Found", "WorldModels", "find"]
