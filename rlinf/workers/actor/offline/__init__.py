"""Learning from datasets.

| module | has |
|---|---|
| `dataset_learner` | `DatasetLearner`: reads the data, says which samples a batch has |
| `iql` | `IQLLearner`: implicit Q-learning |
| `descent` | optimiser steps that nobody waits for |
"""
