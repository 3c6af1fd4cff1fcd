"""A report as one HTML file that contains template, style and scripts: nothing is fetched."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import importlib.metadata
import importlib.util
import re
from pathlib import Path

import jinja2
from markupsafe import Markup

from bnrecon.reproduction.experiment import VERDICTS
from bnrecon.reproduction.report.contents import Report, count_verdicts
from bnrecon.reproduction.report.errata import inline
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.extras import install_command

HERE = Path(__file__).parent
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # not allowed in HTML


def require_libraries() -> None:
    """Raise ``UserError`` if a library for the report is not installed."""
    needed = {"itables": "itables", "markdown_it": "markdown-it-py"}
    missing = [name for module, name in needed.items() if importlib.util.find_spec(module) is None]
    if missing:
        names = " and ".join(missing)
        raise UserError(f"bnrecon report needs {names}: {install_command('report')}")


def render(report: Report) -> bytes:
    """Render the file; the same report gives the same bytes."""
    script = Markup((HERE / "report.js").read_text("utf-8"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (  # allow no requests and no other scripts
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}' blob:; base-uri 'none'; form-action 'none'"
    )
    # Escape everything except ``Markup``; an undefined name is an error.
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    html = templates.get_template("report.html.jinja").render(
        report=report,
        style=Markup((HERE / "report.css").read_text("utf-8")),
        script=script,
        policy=policy,
        library=_library(),
        library_version=importlib.metadata.version("itables"),
        counts=count_verdicts,
        meanings=VERDICTS,
        inline=functools.partial(inline, errata=report.errata.anchors),
    )
    # A name that is not valid text, such as a folder's may be, is shown by its bytes.
    return CONTROL.sub("�", html).encode("utf-8", "backslashreplace")


@functools.cache
def _library() -> str:
    """DataTables, as bundled by itables for offline use, compressed, in base64."""
    # Do not import it: it would read configuration files of the current folder.
    spec = importlib.util.find_spec("itables")
    folder = Path((spec and spec.origin) or "")  # require_libraries was called
    bundle = (folder.parent / "html" / "dt_bundle.js").read_bytes()
    return base64.b64encode(gzip.compress(bundle, 9, mtime=0)).decode()
