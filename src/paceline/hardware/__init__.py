"""What this machine has, and what it lets us use."""
