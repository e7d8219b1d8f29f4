"""The ground floor: reads exported models with NumPy and one runtime, without Keras.

The library writes such files, the server serves them, and both take their version from here.
"""

__version__ = "0.2.0.dev0"
