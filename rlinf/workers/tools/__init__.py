"""Workers that run the tools of agents."""
