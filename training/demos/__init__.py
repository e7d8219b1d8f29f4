"""The demos, by the paths of a checkout."""
