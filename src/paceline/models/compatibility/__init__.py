"""Compatibility of a draft model with a target."""
