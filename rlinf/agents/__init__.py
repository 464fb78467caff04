"""Agents: episodes of several turns, the tools they use, and the exact tokens they are made of."""
