"""Offline reinforcement learning that keeps adapting after deployment."""

__version__ = "0.1.0"
