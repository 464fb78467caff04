"""Workers that say what responses are worth."""
