"""The values that rooms and processes hand to each other: small frozen msgspec structs, no tensors, no behaviour."""
