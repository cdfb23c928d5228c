"""Trajectories recorded from the genuine flax.optim, and what reads and replays them."""
