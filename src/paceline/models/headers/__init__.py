"""Facts of a model from its files, read without the weights."""
