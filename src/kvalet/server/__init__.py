"""The HTTP edge: OpenAI's and llama.cpp's dialects over one engine thread."""
