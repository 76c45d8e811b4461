"""Where models lie on this machine, what they are called, and how they get here."""
