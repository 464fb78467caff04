"""Worlds of text that an agent plays in, turn by turn."""
