"""Workers that simulate."""
