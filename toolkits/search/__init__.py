"""Builds, asks and serves search indexes for agents."""
