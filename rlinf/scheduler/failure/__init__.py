"""What happened, to whom, first: evidence that survives a process, and the failure card."""
