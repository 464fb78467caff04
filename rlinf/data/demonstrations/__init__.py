"""Datasets as demonstrations: what an env observes in them, and what learners are given of them."""
