"""Make logs: data by D4RL's recipe, in any Gymnasium environment with Box observations and actions."""
