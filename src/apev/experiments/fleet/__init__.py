"""Fleets: worlds of hidden kinds, found in a log without labels, and what adapting to them is worth."""
