"""A rank's work: the model, its caches, and the obedience to step plans. Tensors live here only."""
