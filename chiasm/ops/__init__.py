"""Tensor functions without weights."""
