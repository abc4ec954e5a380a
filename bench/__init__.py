"""Benchmarks: each measures and asserts nothing, beside its rivals and its floor."""
