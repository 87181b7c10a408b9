"""The core: schedule, execute, apply, again and again."""
