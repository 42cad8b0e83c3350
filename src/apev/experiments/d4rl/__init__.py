"""The paper's Section 6.3: robots' logs, recipe, tables and page."""
