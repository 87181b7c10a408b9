"""Where the requests of a load come from."""
