"""Give a draft model another model's vocabulary, so that it can draft for it."""

from paceline.prepare.transplant.transplant import Transplant, TransplantOptions, TransplantReport

__all__ = ["Transplant", "TransplantOptions", "TransplantReport"]
