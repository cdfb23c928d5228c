"""Sphinx's settings for the guide."""

import os
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import jax.typing
import optax
from docutils import nodes
from sphinx.util.typing import stringify_annotation

from migration_guide.docstrings import as_rest
from migration_guide.generated import filled_in

# The kernels that run the snippets inherit it: numbers come from the CPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Some pages show what several devices do.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

myst_enable_extensions = ["colon_fence"]

project = "optax-bridge"
_about = metadata.metadata(project)
_urls = dict(url.split(", ") for url in _about.get_all("Project-URL") or ())
version = release = _about["Version"]
html_title = f"{project} {release}"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.githubpages", "sphinx.ext.napoleon"]
source_suffix = {".md": "myst-nb"}
html_theme = "furo"
pygments_dark_style = "monokai"
html_static_path = ["_static"]
html_css_files = ["guide.css"]
html_js_files = [("guide.js", {"defer": "defer"})]
html_favicon = "_static/favicon.svg"
html_baseurl = _urls["Documentation"]
html_theme_options = {
    "source_repository": _urls["Repository"],
    "source_branch": "main",
    "source_directory": "migration_guide/source/",
    "footer_icons": [{"name": "Repository", "url": _urls["Repository"], "html": "Repository"}],
}
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
myst_heading_anchors = 3
myst_html_meta = {"description": _about["Summary"]}

# Docstrings have code in single backticks; what names something public becomes a link.
default_role = "py:obj"
add_module_names = False
autodoc_default_options = {"show-inheritance": True}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_use_ivar = True
napoleon_attr_annotations = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 72

nb_execution_mode = "force"
# Pages about PyTorch show their snippets alone where it is not installed.
nb_execution_excludepatterns = [] if find_spec("torch") else ["torch/*"]
suppress_warnings = ["myst-nb.lexer"]  # of cells that are not run
nb_execution_timeout = 300
nb_execution_in_temp = True  # pages write files
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_render_markdown_format = "myst"
# What a snippet says on stderr is an error of the build, unless the cell is tagged `remove-stderr`.
nb_output_stderr = "remove-warn"


def _fill_in(app: Any, name: str, source: list[str]) -> None:
    """Puts the generated parts where a page has their marks."""
    del app, name
    source[0] = filled_in(source[0])


def _pair(app: Any, doctree: nodes.document) -> None:
    """Puts a cell tagged `old` and the one after it, tagged `new`, side by side."""
    del app
    for old in list(doctree.findall(nodes.container)):
        if "tag_old" not in old["classes"]:
            continue
        new = old.next_node(descend=False, siblings=True)
        if not isinstance(new, nodes.Element) or "tag_new" not in new.get("classes", ()):
            raise ValueError(f"{doctree['source']}: no cell tagged `new` after one tagged `old`")
        pair = nodes.container(classes=["pair"])
        old.replace_self(pair)
        new.parent.remove(new)
        pair += [old, new]


def _in_rest(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Lets autodoc read docstrings that are Markdown."""
    del app, what, name, value, options
    lines[:] = as_rest(lines)


# What autodoc would spell out.
_ALIASES = {
    stringify_annotation(value, "smart"): name
    for name, value in (
        ("ScalarOrSchedule", optax.ScalarOrSchedule),
        ("ArrayLike", jax.typing.ArrayLike),
    )
}


def _with_aliases(
    app: Any, what: str, name: str, value: Any, options: Any, arguments: str, returned: str
) -> tuple[str, str]:
    """Writes the names of long types in signatures."""
    del app, what, name, value, options
    for text, alias in _ALIASES.items():
        arguments = arguments and arguments.replace(text, alias)
    return arguments, returned


def _is_field(app: Any, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Leaves out the fields of a NamedTuple: its docstring has them."""
    del app, what, name, skip, options
    return True if str(getattr(value, "__doc__", "")).startswith("Alias for field number") else None


def setup(app: Any) -> dict[str, bool]:
    """Registers the generated parts and the pairs with Sphinx."""
    app.connect("source-read", _fill_in)
    app.connect("doctree-read", _pair)
    app.connect("autodoc-process-signature", _with_aliases)
    app.connect("autodoc-skip-member", _is_field)
    app.connect("autodoc-process-docstring", _in_rest, priority=100)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
