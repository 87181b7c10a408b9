"""Load on an OpenAI-compatible server over HTTP, and what came of it."""
