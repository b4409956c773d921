"""Preparation of a model for placement: plans, layouts, tied parameters and initial values."""
