"""Runs programs that nobody has read: confined, limited, and killed with all they started."""
