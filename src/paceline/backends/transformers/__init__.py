"""The transformers backend."""
