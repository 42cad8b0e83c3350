"""Offline reinforcement learning that keeps adapting after deployment."""

__version__ = "0.1.0"

from apev.data import Dataset
from apev.policy import Policy, load

__all__ = ["Dataset", "Policy", "__version__", "load"]
