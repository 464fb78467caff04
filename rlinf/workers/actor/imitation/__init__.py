"""Learning from what others did: behaviour cloning."""
