"""Files, locks, forks and exits of a process."""
