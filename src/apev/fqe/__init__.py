"""Which policy to deploy, and whether adapting helps, from a log alone: fitted Q evaluation on (state, belief)."""

from apev.fqe.estimate import fqe
from apev.fqe.results import Estimate, Estimates, Interval

__all__ = ["Estimate", "Estimates", "Interval", "fqe"]
