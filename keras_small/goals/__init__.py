"""The goals of `compress`, one class a file; each chooses among the candidates of a plan."""

from keras_small.goals.goal import Goal

__all__ = ["Goal"]
