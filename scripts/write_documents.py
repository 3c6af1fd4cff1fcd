#!/usr/bin/env python3
"""Write docs/reproduction/NAME.md, the tables of docs/results.md and outputs/datapackage.json.

    python scripts/write_documents.py [--check]

All are made from the results in outputs/. With --check nothing is written: the exit code is 1 if a
page differs from the results.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command_line
import pandas as pd

from bnrecon.reporting.result import RunResult
from bnrecon.reproduction.document import (
    beyond,
    claims_by_part,
    document,
    finding_rows,
)
from bnrecon.reproduction.parts import read_reported
from bnrecon.reproduction.study import SCALES, Study
from bnrecon.runtime import files
from bnrecon.runtime.digests import file_digest
from bnrecon.studies import registry

ROOT = Path(__file__).resolve().parent.parent
OUTPUTS = ROOT / "outputs"
MAIN_JOB = ("vgg18_width64_205_epochs", "vgg18_width16")
TARGETS = (  # a paper's table, its data set, and the convolutions between poolings
    ("table1", "cifar10", "CIFAR-10", (2, 3, 4, 4, 4)),
    ("table1", "cifar10", "CIFAR-10, not in Table 1", (4, 4, 4, 5)),
    ("table2", "cifar100", "CIFAR-100", (2, 3, 4, 4, 4)),
)
BEYOND = "reproduction/beyond"
TYPES = {"i": "integer", "f": "number", "b": "boolean"}  # column types, by NumPy's kind
HEADING = r"[^<]*?\|(?:---\|)+"  # up to a table's rows


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or compare them."""
    check = command_line.parser(__doc__, check=False).parse_args(arguments).check
    outdated = [(path, text) for path, text in pages() if not files.has_text(path, text)]
    for path, text in outdated:
        if not check:
            files.write_text(path, text)
        print(f"{path.relative_to(ROOT)} {'differs from the results' if check else 'written'}")
    return 1 if check and outdated else 0


def pages() -> Iterator[tuple[Path, str]]:
    """Each page and its text."""
    docs, studies = ROOT / "docs", [registry.find(name) for name in registry.STUDIES]
    for study in studies:
        yield docs / "reproduction" / f"{study.name}.md", document(study, OUTPUTS)
    yield docs / f"{BEYOND}.md", beyond(studies, OUTPUTS)
    yield docs / "results.md", results((docs / "results.md").read_text(encoding="utf-8"))
    package = json.dumps(data_package(), indent=1, ensure_ascii=False)
    yield OUTPUTS / "datapackage.json", f"{package}\n"


def data_package() -> dict[str, Any]:
    """The shipped tables as a Data Package, version 2: https://datapackage.org/standard/."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    studies = [registry.find(name) for name in registry.STUDIES]
    shipped = itertools.product(studies, SCALES)
    tables = [(study, part, scale) for study, scale in shipped for part in study.parts]
    return {
        "$schema": "https://datapackage.org/profiles/2.0/datapackage.json",
        **{key: project[key] for key in ("name", "version", "description")},
        "licenses": [{"name": project["license"]}],
        "sources": [{"title": study.paper} for study in studies],
        "resources": [resource(*table) for table in tables if _csv(*table).is_file()],
    }


def resource(study: Study, part: str, scale: str) -> dict[str, Any]:
    """A part's table in full precision: its file, digest and columns."""
    path, at = _csv(study, part, scale), "" if scale == "laptop" else f"-{scale}"
    columns = pd.read_csv(path, keep_default_na=False, na_values=[""]).dtypes.items()
    fields = [{"name": name, "type": TYPES.get(kind.kind, "string")} for name, kind in columns]
    shown = study.part(part)
    return {
        "name": f"{study.name}-{part}{at}",
        "title": f"{study.paper}, {shown.where}: {shown.title}. Scale {scale}",
        "path": path.relative_to(OUTPUTS).as_posix(),
        "format": "csv",
        "hash": f"sha256:{file_digest(path)}",
        "schema": {"fields": fields},
    }


def _csv(study: Study, part: str, scale: str) -> Path:
    return OUTPUTS / study.name / f"{part}-{scale}.csv"


def results(text: str) -> str:
    """The page of results with the rows of its tables updated."""
    for name, rows in {"main job": main_job, "targets": targets, "findings": findings}.items():
        start = rf"<!-- written by scripts/write_documents.py: {name} -->\n"
        start += "" if rows is findings else HEADING
        block = re.search(rf"({start}\n).*?(\n\n<!-- end -->)", text, re.DOTALL)
        text = text[: block.end(1)] + rows() + text[block.start(2) :]
    return text


def main_job() -> str:
    """The table of whole networks from the main job."""
    rows = []
    for name in MAIN_JOB:
        result = RunResult.read(OUTPUTS / "main_job" / name / "result.json")
        counts = [seed.predictions for seed in result.seeds if seed.predictions is not None]
        changed = f"{sum(c.differ for c in counts)} of {sum(c.images for c in counts):,}"
        epochs, width = result.config["train"]["epochs"], result.config["target"]["width"]
        error = max(layer.relative_error for layer in result.layers)
        rows.append(
            f"| width {width}, {epochs} epochs | {result.target.accuracy:.2f} | "
            f"{result.accuracy} | {changed} | {error:.1e} |"
        )
    return "\n".join(rows)


def targets() -> str:
    """The table of targets with the papers' width and epochs, and the published accuracies."""
    made = {}
    for path in sorted((OUTPUTS / "targets").glob("*/target.json")):
        metadata = files.read_json(path)
        data, target, train = (metadata["config"][name] for name in ("data", "target", "train"))
        if (target["name"], target["width"], train["epochs"]) == ("vgg18", 64, 205):
            key = data["name"], tuple(target["groups"]), target["activation"]
            made[key] = f"{metadata['accuracy']:.2f}"
    rows, reported = [], read_reported("bnrecon.studies.burkholz2024")
    for table, data, shown, groups in TARGETS:
        cells = [shown, ", ".join(map(str, groups))]
        for name in ("relu", "leaky_relu", "tanh", "sigmoid"):
            accuracy, printed = made.get((data, groups, name)), reported[table]["target"][name]
            cells.append(f"{printed:.2f} / {accuracy}" if accuracy else "not run")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def findings() -> str:
    """A table of claims per paper, and one of our own."""
    head = ("| claim | verdict | number |", "|---|---|---|")
    sections, ours = [], list(head)
    for name in registry.STUDIES:
        study, page = registry.find(name), f"reproduction/{name}.md"
        claims = claims_by_part(study, OUTPUTS, "laptop")
        rows = "\n".join([*head, *finding_rows(study, claims, page)])
        sections += [f"## [{study.paper}]({page})", rows]
        ours += finding_rows(study, claims, f"{BEYOND}.md", beyond=True)
    return "\n\n".join([*sections, f"## [Our own claims]({BEYOND}.md)", "\n".join(ours)])


if __name__ == "__main__":
    sys.exit(main())
