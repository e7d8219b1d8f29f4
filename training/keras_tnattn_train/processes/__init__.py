"""Devices, and the other processes that a command works with or starts."""
