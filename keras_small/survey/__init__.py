"""Surveys a model: its layers, their inputs, and how sensitive its outputs are to each layer."""
