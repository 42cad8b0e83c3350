"""Which policy to deploy, and whether adapting helps, from a log alone: fitted Q evaluation on (state, belief)."""

from apev.valuation.estimate import fqe
from apev.valuation.results import Estimate, Estimates, Interval

__all__ = ["Estimate", "Estimates", "Interval", "fqe"]
