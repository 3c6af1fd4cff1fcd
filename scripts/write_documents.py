#!/usr/bin/env python3
"""Write docs/reproduction/NAME.md, the tables of docs/results.md and outputs/datapackage.json.

    python scripts/write_documents.py [--check]

All come from the results in outputs/. With --check nothing is written: the exit code is 1 where a
page differs from the results.
"""

from __future__ import annotations

import hashlib
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
from bnrecon.reproduction.document import beyond, claims_by_part, document, findings_table
from bnrecon.reproduction.parts import read_reported
from bnrecon.reproduction.study import Study
from bnrecon.runtime import files
from bnrecon.studies import registry

ROOT = Path(__file__).resolve().parent.parent
OUTPUTS = ROOT / "outputs"
MAIN_JOB = ("vgg18_width64_205_epochs", "vgg18_width16")
TARGETS = (  # a paper's table, its data, and the convolutions between poolings
    ("table1", "cifar10", "CIFAR-10", (2, 3, 4, 4, 4)),
    ("table1", "cifar10", "CIFAR-10", (4, 4, 4, 5)),
    ("table2", "cifar100", "CIFAR-100", (2, 3, 4, 4, 4)),
)
BEYOND = "reproduction/beyond"
TYPES = {"i": "integer", "f": "number", "b": "boolean"}  # of a column, by NumPy's kind
BLOCK = r"(<!-- written by scripts/write_documents.py: {} -->\n).*?(<!-- end -->)"


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or compare them."""
    check = command_line.parser(__doc__, check=False).parse_args(arguments).check
    outdated = []
    for path, text in pages():
        if files.has_text(path, text):
            continue
        outdated.append(path.relative_to(ROOT))
        if not check:
            files.write_text(path, text)
    for path in outdated:
        print(f"{path} {'differs from the results' if check else 'written'}")
    return 1 if check and outdated else 0


def pages() -> Iterator[tuple[Path, str]]:
    """Each page and its text."""
    for name in registry.STUDIES:
        path = ROOT / "docs" / "reproduction" / f"{name}.md"
        yield path, document(registry.find(name), OUTPUTS)
    path = ROOT / "docs" / f"{BEYOND}.md"
    yield path, beyond([registry.find(name) for name in registry.STUDIES], OUTPUTS)
    path = ROOT / "docs" / "results.md"
    yield path, results(path.read_text(encoding="utf-8"))
    path = OUTPUTS / "datapackage.json"
    yield path, json.dumps(data_package(), indent=1, ensure_ascii=False) + "\n"


def data_package() -> dict[str, Any]:
    """The shipped tables as a Data Package, version 2: https://datapackage.org/standard/."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        "$schema": "https://datapackage.org/profiles/2.0/datapackage.json",
        "name": "bnrecon",
        "title": "Results of bnrecon",
        "description": project["description"],
        "version": project["version"],
        "licenses": [{"name": project["license"]}],
        "sources": [{"title": registry.find(name).paper} for name in registry.STUDIES],
        "resources": [
            resource(study, part)
            for study in map(registry.find, registry.STUDIES)
            for part in study.parts
            if (OUTPUTS / study.name / f"{part}-laptop.csv").is_file()
        ],
    }


def resource(study: Study, part: str) -> dict[str, Any]:
    """A part's table of full precision: its file, digest and columns."""
    path = OUTPUTS / study.name / f"{part}-laptop.csv"
    content = path.read_bytes()
    frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
    return {
        "name": f"{study.name}-{part}",
        "title": f"{study.paper}, {study.part(part).where}: {study.part(part).title}",
        "path": path.relative_to(OUTPUTS).as_posix(),
        "format": "csv",
        "mediatype": "text/csv",
        "encoding": "utf-8",
        "bytes": len(content),
        "hash": f"sha256:{hashlib.sha256(content).hexdigest()}",
        "schema": {
            "fields": [
                {"name": name, "type": TYPES.get(kind.kind, "string")}
                for name, kind in frame.dtypes.items()
            ]
        },
    }


def results(text: str) -> str:
    """The page of results with its tables written anew."""
    for name, table in (("main job", main_job), ("targets", targets), ("findings", findings)):
        pattern = re.compile(BLOCK.format(name), re.DOTALL)
        text = pattern.sub(lambda match, made=table: f"{match[1]}\n{made()}\n\n{match[2]}", text)
    return text


def main_job() -> str:
    """Whole networks by the main job."""
    rows = [
        "## VGG18 reconstructed",
        "",
        "CIFAR-10, he_normal features, 1.5 n a layer ([commands](../outputs/main_job/README.md)).",
        "",
        "| target | accuracy | reconstructed | predictions that change | largest layer error |",
        "|---|---|---|---|---|",
    ]
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
    """The targets of the papers' width and epochs beside those in print."""
    rows = [
        "## Targets of Tables 1 and 2, width 64 and 205 epochs",
        "",
        "Accuracy, published / here; one training each. Tables 1 and 2 have the first plan.",
        "",
        "| data | convolutions between poolings | relu | leaky ReLU | tanh | sigmoid |",
        "|---|---|---|---|---|---|",
    ]
    made = {}
    for path in sorted((OUTPUTS / "targets").glob("*/target.json")):
        metadata = files.read_json(path)
        data, target, train = (metadata["config"][name] for name in ("data", "target", "train"))
        if (target["name"], target["width"], train["epochs"]) == ("vgg18", 64, 205):
            key = data["name"], tuple(target["groups"]), target["activation"]
            made[key] = metadata["accuracy"]
    reported = read_reported("bnrecon.studies.burkholz2024")
    for table, data, shown, groups in TARGETS:
        printed = reported[table]["target"]
        cells = [
            f"{printed[name]:.2f} / {made[data, groups, name]:.2f}"
            if (data, groups, name) in made
            else "not run"
            for name in ("relu", "leaky_relu", "tanh", "sigmoid")
        ]
        rows.append(f"| {shown} | {', '.join(map(str, groups))} | {' | '.join(cells)} |")
    return "\n".join(rows)


def findings() -> str:
    """A table of claims a paper, and one of ours."""
    sections: list[str] = []
    ours: list[str] = []
    for name in registry.STUDIES:
        study, page = registry.find(name), f"reproduction/{name}.md"
        claims = claims_by_part(study, OUTPUTS, "laptop")
        sections += [f"## [{study.paper}]({page})", findings_table(study, claims, page)]
        ours += findings_table(study, claims, f"{BEYOND}.md", beyond=True).splitlines()[2:]
    sections.append(f"## [Beyond the papers]({BEYOND}.md)")
    sections.append("\n".join(["| claim | verdict | number |", "|---|---|---|", *ours]))
    return "\n\n".join(sections)


if __name__ == "__main__":
    sys.exit(main())
