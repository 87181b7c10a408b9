"""Layers that hold weights, each sharded over the group that it is given."""
