"""The hardware of this machine, and the share of it that this process may use."""
