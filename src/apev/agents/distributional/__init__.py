"""Agents that learn whole return distributions from pictures: C51 and APE-V on it."""
