"""From events to response bodies, one dialect a file."""
