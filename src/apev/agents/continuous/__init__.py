"""Agents of continuous actions: actors and critics."""
