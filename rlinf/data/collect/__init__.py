"""Episodes of experts and policies, played in one process and written into a dataset.

One module owns one part of it:

    recording   `EpisodeFrames`, one episode while it is played, and how it is written
    noise       what is added to actions, so that episodes differ in quality
    collector   `Collector`: plays numbered episodes and keeps those that are wanted, in order
"""
