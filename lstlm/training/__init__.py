"""Training: the loop, its budget, its checkpoints and its log; `lstlm train` is a thin face on `train`."""
