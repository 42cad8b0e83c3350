"""Worlds: the kinds of contexts that a log holds, found without labels, and models that tell them apart."""

from apev.worlds.find import NO_KIND
from apev.worlds.models import WorldModels
from apev.worlds.verdict import Kinds, kinds

__all__ = ["NO_KIND", "Kinds", "WorldModels", "kinds"]
