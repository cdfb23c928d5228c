"""Sphinx's settings for the guide."""

import os
from typing import Any

from migration_guide.tables import MARK, correspondence_markdown

# The kernels that run the snippets inherit it: numbers come from the CPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

project = "optax-bridge"
html_title = "From flax.optim to Optax"
extensions = ["myst_nb"]
source_suffix = {".md": "myst-nb"}
html_theme = "furo"
pygments_dark_style = "monokai"
html_static_path = ["_static"]
html_css_files = ["guide.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
myst_heading_anchors = 3

nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_in_temp = True  # pages write files
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
# What a snippet says on stderr is an error of the build, unless the cell is tagged `remove-stderr`.
nb_output_stderr = "remove-warn"


def _fill_in(app: Any, name: str, source: list[str]) -> None:
    """Puts the generated tables where a page has the mark."""
    del app, name
    if MARK in source[0]:
        source[0] = source[0].replace(MARK, correspondence_markdown())


def setup(app: Any) -> dict[str, bool]:
    """Registers the tables with Sphinx."""
    app.connect("source-read", _fill_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
