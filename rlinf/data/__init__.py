"""Batches and trajectories: what workers hand each other."""
