"""Learning from datasets.

| module | has |
|---|---|
| `dataset_learner` | `DatasetLearner`: says which samples of the data a batch has |
| `demonstration_learner` | `DemonstrationLearner`: reads the episodes that a policy learns from |
| `iql` | `IQLLearner`: implicit Q-learning |
| `descent` | optimiser steps that nobody waits for |
"""
