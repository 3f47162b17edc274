"""What a run tells: console, metrics, TensorBoard."""
