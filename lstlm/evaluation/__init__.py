"""Scores of trained vectors and models: word similarity, analogies, perplexity."""
