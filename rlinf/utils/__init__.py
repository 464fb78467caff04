"""Small helpers with more than one user."""
