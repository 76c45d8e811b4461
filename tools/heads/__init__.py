"""Reference values of published draft heads, computed by the classes that their authors publish."""
