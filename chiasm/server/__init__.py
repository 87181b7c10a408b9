"""The HTTP server: OpenAI's API over an engine. It parses, limits, streams and reports; it holds no tensors."""
