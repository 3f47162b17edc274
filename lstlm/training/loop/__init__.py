"""The loop: learn, log, evaluate, save, and what to do when numbers go wrong."""
