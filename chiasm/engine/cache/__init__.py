"""Accounting of the KV cache and the encoder cache: who holds what. No tensors, no torch."""
