"""What the operating system knows of a process: its files, its locks, its forks and its end."""
