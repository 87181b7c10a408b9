"""Whether everything is right and how fast it is on one device, in minutes."""
