"""Policies that act by tokens of a language model: OpenVLA, and OpenVLA-OFT.

Nothing is imported here: the schema, in `config`, must load without torch.
"""
