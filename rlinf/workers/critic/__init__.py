"""Value functions in workers of their own."""
