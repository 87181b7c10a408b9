"""chiasm beside its peers, in one run: ``python -m bench.peers.hf_tower``, and so on (README.md)."""
