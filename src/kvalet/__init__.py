"""kvalet: an LLM server that never drops a conversation."""

__version__ = "0.1.0"
