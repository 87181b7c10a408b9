"""Data sets as they are published: rows of parquet or JSON lines, in a folder or on the hub."""
