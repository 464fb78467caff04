"""Recurrent policy on pictures and an instruction, for navigation."""
