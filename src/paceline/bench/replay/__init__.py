"""Replays of recorded requests by any drafter, without a model."""
