"""Transplants of another model's vocabulary into a draft model, so that it can draft for that model."""

from paceline.prepare.transplant.transplant import Transplant, TransplantOptions

__all__ = ["Transplant", "TransplantOptions"]
