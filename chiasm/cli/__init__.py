"""The command line: ``chiasm serve`` and ``chiasm generate``."""
