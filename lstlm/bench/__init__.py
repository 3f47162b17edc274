"""Benchmarks: what is measured goes into records, and tables and pictures are made from records alone."""
