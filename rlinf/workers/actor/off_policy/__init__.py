"""Learners from a replay buffer.

| module | has |
|---|---|
| `learner` | `OffPolicyLearner`: rollouts go into the buffer, batches come out, targets follow |
| `sac` | `SACLearner`: soft actor-critic, of real numbers and of choices |
| `temperature` | the weight of entropy |
| `target_network` | the slow copy of the critics |
| `tally` | metrics that stay on the device until an update is over |
"""
