"""What pays for finding something new: within an episode, over a run, and how much of it counts for whom."""
