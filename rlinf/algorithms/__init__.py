"""Advantages, losses and rewards: pure functions of tensors, found by name."""
