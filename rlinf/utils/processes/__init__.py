"""Child processes that are asked, have so long to answer, and are killed with all they started."""
