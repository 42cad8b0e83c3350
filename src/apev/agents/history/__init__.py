"""Offline algorithms that keep a history of their episode: the last steps stacked, or the state of a GRU."""
