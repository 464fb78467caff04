"""MetaWorld: 50 tasks of a Sawyer arm, simulated by MuJoCo."""
