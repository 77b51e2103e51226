"""The site: `make docs`. Pages below reference/generated are written from the code at every build."""

import re
import sys
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS), str(DOCS.parent / "backbone")]  # the last: `import adab2n`

import generated  # noqa: E402

project = "AdaB²N bench"
copyright = "the authors, MIT licence"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
highlight_language = "text"
default_role = "code"  # what single backticks in docstrings mean

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures stay readable; `Args:` says what is expected
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_math_renderer = "mathml"  # which browsers show without a script from the network

SYMBOLS = {
    "Σ": r"\sum ", "∏": r"\prod ", "∫": r"\int ", "…": r"\dots ", "←": r"\leftarrow ", "∈": r"\in ", "∞": r"\infty ",
    "≤": r"\le ", "≥": r"\ge ", "≡": r"\equiv ", "≈": r"\approx ", "∝": r"\propto ",
}  # fmt: skip


def render_inline(translator, node):
    translator.body.append(convert(node.astext().translate(str.maketrans(SYMBOLS))))
    raise nodes.SkipNode


def render_block(translator, node):
    formula = convert(node.astext().translate(str.maketrans(SYMBOLS)), display="block")
    translator.body.append(f'<div class="formula">{formula}</div>')
    raise nodes.SkipNode


def adapt_links(app, name, source):
    """Lead to the site's own pages where guides link to files beside `docs`; other such links become text."""
    if "/" not in name:
        text = source[0].replace("../README.md#add-your-own-norm", "tutorials/own_norm.md")
        source[0] = re.sub(r"\[([^]]*)\]\(\.\./[^)]*\)", r"\1", text)


def setup(app):
    app.add_html_math_renderer("mathml", (render_inline, None), (render_block, None))
    app.connect("source-read", adapt_links)
    generated.write_pages(DOCS / "reference" / "generated")
