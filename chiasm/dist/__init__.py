"""Processes: the groups that ranks exchange tensors in, and the children that they run as."""
