"""Agents of discrete actions: value ensembles and what differs from them."""
