"""What a model file says: metadata, tensors, tokenizer, chat template, and where files come from.

Knows files and text only; it computes nothing with a tensor and never sees a request.
"""
