"""Files on this machine: written whole or not at all, locked, and gone with whoever worked on them."""
