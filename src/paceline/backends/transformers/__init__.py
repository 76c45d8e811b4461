"""Models through PyTorch and transformers."""
