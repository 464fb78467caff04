"""Engines that run as servers elsewhere and are reached by URL."""
