"""The paper's experiments as typed recipes."""
