"""Recorded requests decoded again, by any drafter and without a model: what would have been accepted."""
