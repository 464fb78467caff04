"""ManiSkill: manipulation tasks on SAPIEN, simulated together on a GPU."""
