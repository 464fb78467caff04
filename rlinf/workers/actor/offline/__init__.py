"""Learning from datasets.

| module | has |
|---|---|
| `dataset_learner` | `DatasetLearner`: reads the data, says which samples a batch has |
| `fitting_data` | reads what a policy looks at, and refuses what does not fit it |
| `iql` | `IQLLearner`: implicit Q-learning |
| `descent` | optimiser steps that nobody waits for |
"""
