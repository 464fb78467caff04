"""Distributed reinforcement learning for embodied policies, reasoning models and agents."""

__version__ = "0.1.0"
