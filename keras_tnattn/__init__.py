"""Tensor-network attention for Keras 3."""
