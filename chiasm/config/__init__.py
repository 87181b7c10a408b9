"""Settings of an engine and a server, and the JSON files of a checkpoint. Nothing here imports torch."""
