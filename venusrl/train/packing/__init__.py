"""Laying samples of different lengths out as rectangular batches."""
