"""The paper's Section 6.1: rooms, logs, recipe, replays and page."""
