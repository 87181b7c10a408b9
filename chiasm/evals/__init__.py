"""Measuring what a model answers: seeded charts with known answers, and the accuracy on them."""
