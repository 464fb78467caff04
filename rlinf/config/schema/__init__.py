"""Typed sections of the config, one module each."""
