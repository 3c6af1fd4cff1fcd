"""What an error of Hydra, OmegaConf or yaml means, in one line."""

from __future__ import annotations

import dataclasses
import re

import yaml
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from bnrecon.config.schema import GROUPS, RunConfig, TargetConfig, schema_classes
from bnrecon.runtime.errors import nearest

__all__ = ["explain"]


def explain(error: BaseException) -> str:
    """Say in one line what an error of Hydra, OmegaConf or yaml means, with the nearest right word."""
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    if isinstance(error, RecursionError):
        return "the defaults of yaml files name each other in a circle; look into your own ones"
    if isinstance(causes[-1], yaml.YAMLError):
        return _about_yaml(causes[-1])
    text = "\n".join(str(cause) for cause in causes)
    if match := re.search(r"Key '([^']+)' (?:is )?not in '(\w+)'", text):
        full = re.search(r"full_key: (\S+)", text) or re.search(
            r"(?:override|appending) '?\+?([\w.]+)", text
        )
        where = full[1] if full else match[1]
        prefix = where.rpartition(".")[0]
        node = next((c for c in schema_classes() if c.__name__ == match[2]), None)
        allowed = [f.name for f in dataclasses.fields(node)] if node else []
        allowed = [f"{prefix}.{name}" if prefix else name for name in allowed]
        return f"{where} is not an option: {_instead(where) or nearest(where, allowed if prefix else _top_level())}"
    if match := re.search(
        r"Could not find '(.*?)'\s+Available options in '([^']+)':\s+(.*?)(?:Config search path|$)",
        text,
        re.DOTALL,
    ):
        group, given = match[2], match[1].removeprefix(f"{match[2]}/")
        options = [
            word for word in match[3].split() if "/" not in word and not word.endswith("schema")
        ]
        hint = "own yaml files are found with --config-dir"
        if group == "hydra/launcher":
            hint = "others come with: pip install 'bnrecon[launchers]'"
        elif "," in given:
            hint = "several are a sweep, with -m"
        return f"{group}={given}: {nearest(given, options)}; {hint}"
    if match := re.search(r"In '([^']+)': Could not load '([^']+)'", text):
        return f"{match[1]}.yaml names {match[2]} in its defaults, and there is no {match[2]}.yaml"
    if (
        match := re.search(r"Could not (?:override|delete) '([^']*)'", text)
    ) and "No match in the defaults list" in text:
        return (
            f"{match[1]} is not an option: {_instead(match[1]) or nearest(match[1], _top_level())}"
        )
    if match := re.search(r"Ambiguous value for argument '([^'=]+)=([^']*)'", text):
        return f"{match[1]}={match[2]}: write a list as {match[1]}=[{match[2]}]; several values are a sweep, with -m"
    if match := re.search(
        r"Value '(.*?)' of type '\w+' could not be converted to (\w+)", text, re.DOTALL
    ):
        key = re.search(r"full_key: (\S+)", text) or re.search(r"override '?([\w.]+)=", text)
        return f"{key[1] if key else 'an option'}={match[1]}: must be {_ARTICLES.get(match[2], match[2])}"
    if match := re.search(r"Error merging override (\S+)\n.*is not a valid bool", text, re.DOTALL):
        return f"{match[1]}: must be true or false"
    if match := re.search(
        r"Error merging override (\S+)\n.*is not a ListConfig, list or tuple", text, re.DOTALL
    ):
        name, _, given = match[1].partition("=")
        return f"{match[1]}: must be a list, as in {name}=[{given or '0,1,2'}]"
    if match := re.search(r"Error merging override (\S+)\n.*is not Optional", text, re.DOTALL):
        return f"{match[1]}: must have a value"
    if "missing mandatory value" in text and (match := re.search(r"full_key: (\S+)", text)):
        return f"{match[1]} has no value: choose a complete yaml (the *_schema ones are what own yaml files build on)"
    if "missing EQUAL" in text:
        return "an option lacks its value: write name=value without spaces, as in target=vgg18"
    if re.search(
        "mismatched input|token recognition|LexerNoViableAlt|no viable|extraneous input", text
    ):
        where = re.search(r"LexerNoViableAltException: (.*)", text) or re.search(
            r"input '([^']*)'", text
        )
        return f"could not read {where[1] if where else _first(text)!r}; write options as name=value, lists as [1,2], and quote what the shell would take"
    return _first(text) or type(error).__name__


def _about_yaml(error: yaml.YAMLError) -> str:
    """File, line and column of a yaml error, and what is wrong there."""
    if mark := getattr(error, "problem_mark", None):
        return f"{mark.name}: line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    if isinstance(error, yaml.reader.ReaderError):
        return f"{error.name}: character {error.position + 1}: {error.reason}"
    return _first(str(error))


def _top_level() -> set[str]:
    return {*GROUPS, *(f.name for f in dataclasses.fields(RunConfig))}


_ARTICLES = {
    "Integer": "a whole number",
    "Float": "a number",
    "Boolean": "true or false",
    "String": "a word",
}


def _first(text: str) -> str:
    return " ".join(re.sub(r"See https://\S+ for details", "", text.split("\n\n")[0]).split())[:300]


CONFIG_ERRORS = (HydraException, OmegaConfBaseException)


def _instead(given: str) -> str:
    """The options whose last word was given without the first, as in ``width``."""
    groups = {field.name: field.default_factory for field in dataclasses.fields(RunConfig)}
    classes = {name: [kind] for name, kind in groups.items() if dataclasses.is_dataclass(kind)}
    classes["target"] = [kind for kind in schema_classes() if issubclass(kind, TargetConfig)]
    found = {
        f"{name}.{given}"
        for name, kinds in classes.items()
        for kind in kinds
        if given in _names(kind)
    }
    return f"did you mean {' or '.join(sorted(found))}?" if found else ""


def _names(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}
