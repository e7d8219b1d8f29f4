"""The demos that `make` runs."""
