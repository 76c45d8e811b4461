"""Whether one model can draft for another."""
