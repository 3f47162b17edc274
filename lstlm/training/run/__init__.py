"""A run on disk: its folder, checkpoints, resuming."""
