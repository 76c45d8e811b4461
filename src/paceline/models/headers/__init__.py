"""What a model's files say of it, read without its weights."""
