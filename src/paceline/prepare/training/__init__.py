"""Training of draft heads: prompts, answers of the target, and its hidden states."""
