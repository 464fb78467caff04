"""Training and generation engines, and how weights get from one to the other."""
