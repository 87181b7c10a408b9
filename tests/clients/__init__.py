"""Real clients, unmodified, each in a virtual environment of its own, against servers on two ranks."""
