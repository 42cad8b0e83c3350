"""The paper's Section 6.2: mazes, logs, recipe, replays and page."""
