"""Benchmarks and the comparison with Hugging Face, as commands: ``python -m bench.startup``."""
