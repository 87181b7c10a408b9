"""Benchmarks of parts of the engine, on the command line as ``chiasm bench``."""
