"""Functional models assembled from the layers."""
