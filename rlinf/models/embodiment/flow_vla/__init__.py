"""Policies with a vision-language prefix and an action expert: SmolVLA, pi0, pi0.5 and GR00T.

| module | has |
|---|---|
| `decoder` | layers of both streams, and their attention |
| `network` | what the networks share: the prefix, kept for all denoising steps, and velocities |
| `smolvla`, `openpi` | the networks, under the names of their files |
| `groot` | all that is particular to GR00T, whose expert is a diffusion transformer |
| `pictures`, `prompts`, `scaling` | what becomes of pictures, instructions, states, actions |
| `policy` | the policy: chains of denoising steps on such a network |
| `folder`, `statistics` | folders in the public layouts |
| `build` | a policy from its model section |

Nothing is imported here: the schema, in `config`, must load without torch.
"""
