"""Model families, one file each, and how their checkpoints are loaded."""
