"""Model references, the stores of other programs, and downloads."""
