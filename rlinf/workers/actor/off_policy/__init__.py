"""Learners from a replay buffer.

| module | has |
|---|---|
| `learner` | `OffPolicyLearner`: rollouts go into the buffer, batches come out, targets follow |
| `critic_learner` | `CriticLearner`: critics and the targets they learn |
| `sac` | `SACLearner`: soft actor-critic, of real numbers and of choices |
| `crossq` | `CrossQLearner`: SAC without slow copies, critics normalised over the batch |
| `td3` | `TD3Learner`: a deterministic actor |
| `demo_buffer` | demonstrations beside the replay buffer |
| `temperature` | the weight of entropy |
| `target_network` | the slow copy of the critics |
"""
