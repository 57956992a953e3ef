"""The only package that computes with ggml."""
