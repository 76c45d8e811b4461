"""Exit codes that belong to no exception of ours (errors.py has the others)."""

INTERRUPTED = 130
CLOSED_PIPE = 141
