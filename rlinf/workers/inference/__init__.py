"""Workers that add to groups of responses what the actor would have to compute itself."""
