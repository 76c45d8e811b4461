"""Give a draft model another model's vocabulary, so that it can draft for it."""

from paceline.prepare.transplant.transplant import Report, Rules, Transplant

__all__ = ["Report", "Rules", "Transplant"]
