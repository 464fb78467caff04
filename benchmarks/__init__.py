"""Measurements, each beside what a user could take instead."""
