"""Configures Sphinx, which builds the documentation: `make docs`."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "training"), str(HERE / "_extensions")]
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

from keras_tnattn_train.processes.backend import start_backend  # noqa: E402  after the path is set

start_backend()  # without TensorFlow's messages: the reference imports the package

import keras_tnattn  # noqa: E402

project = "keras_tnattn"
author = "the keras_tnattn developers"
copyright = f"2026, {author}"
release = keras_tnattn.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "line_breaks",
    "markdown_docstrings",
    "mathml",
    "reference_pages",
    "report_pages",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "_extensions"]

html_theme = "pydata_sphinx_theme"
html_title = f"keras_tnattn {release}"
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
}
# Pages without others below them have no navigation at their side.
html_sidebars = {name: [] for name in ("start", "gallery", "how_we_know", "papers")}
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_show_sourcelink = False
html_math_renderer = "mathml"
# Blocks without a language are formulas and outputs; those of Python say so.
highlight_language = "none"

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # `make notebooks` runs them, and keeps their outputs

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "none"
# Inherited methods of layers are documented by Keras.
autodoc_inherit_docstrings = False
napoleon_custom_sections = [("Call arguments", "params_style")]
napoleon_numpy_docstring = False
# Document the attributes in a docstring once, not as entries of their own, too.
napoleon_use_ivar = True
