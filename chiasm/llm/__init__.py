"""The Python APIs: ``LLM`` for scripts, ``AsyncLLM`` for servers."""
