"""The frontend: text and media in, token ids for the core; token ids from the core, text out. No torch."""
