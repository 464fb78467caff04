"""Training of reward models."""
