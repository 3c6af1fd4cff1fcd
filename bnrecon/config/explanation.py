"""Explain errors of Hydra, OmegaConf and yaml in one line."""

from __future__ import annotations

import re
from collections.abc import Callable

import yaml

from bnrecon.config.schema import GROUPS, SPECS, RunConfig, field_names, spec_classes
from bnrecon.runtime.errors import nearest
from bnrecon.runtime.options import KINDS
from bnrecon.targets.spec import TARGETS


def explain(error: BaseException) -> str:
    """Explain an error in one line, with the nearest allowed name."""
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    if isinstance(error, RecursionError):
        return "the defaults of yaml files form a circle; check your own files"
    if isinstance(causes[-1], yaml.YAMLError):
        return _explain_yaml(causes[-1])
    text = "\n".join(str(cause) for cause in causes)
    for pattern, explanation in _RULES:
        if match := re.search(pattern, text, re.DOTALL):
            if isinstance(explanation, str):
                return explanation.format(*match.groups())
            if line := explanation(match, text):
                return line
    return _first_paragraph(text) or type(error).__name__


def _explain_yaml(error: yaml.YAMLError) -> str:
    """File, line and column of a yaml error, and the problem."""
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
        return f"{mark.name}: line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    if isinstance(error, yaml.reader.ReaderError):
        return f"{error.name}: character {error.position + 1}: {error.reason}"
    return _first_paragraph(str(error))


def _unknown_key(match: re.Match[str], text: str) -> str:
    key = re.search(r"full_key: (\S+)", text) or re.search(
        r"(?:override|appending) '?\+?([\w.]+)", text
    )
    name = key[1] if key else match[1]
    prefix = name.rpartition(".")[0]
    if not prefix:
        return _unknown_option(name)
    classes = {kind.__name__: kind for kind in (*SPECS.values(), *TARGETS.values())}
    if match[2] not in classes:  # of Hydra's
        return f"{name} is not an option"
    allowed = field_names(classes[match[2]])
    return f"{name} is not an option: {nearest(name, [f'{prefix}.{field}' for field in allowed])}"


def _unknown_choice(match: re.Match[str], _: str) -> str:
    group, choice = match[2], match[1].removeprefix(f"{match[2]}/")
    words = match[3].split()
    allowed = [word for word in words if "/" not in word and not word.endswith("schema")]
    hint = "your own: functions with imports=[MODULE], yaml files with --config-dir"
    if group.startswith("hydra/"):
        hint = "sweeps run by jobs= or cluster="
    elif "," in choice:
        hint = "several values are a sweep, with -m"
    return f"{group}={choice}: {nearest(choice, allowed)}; {hint}"


def _unknown_group(match: re.Match[str], text: str) -> str:
    return _unknown_option(match[1]) if "No match in the defaults list" in text else ""


def _several_values(match: re.Match[str], _: str) -> str:
    name, values = match[1], match[2]
    number = f", a number as {values.replace(',', '.')}" if re.fullmatch(r"\d+,\d+", values) else ""
    return (
        f"{name}={values}: write a list as {name}=[{values}]{number}; "
        "several values are a sweep, with -m"
    )


def _wrong_type(match: re.Match[str], text: str) -> str:
    name = re.search(r"full_key: (\S+)", text) or re.search(r"override '?([\w.]+)=", text)
    kinds = {"Integer": int, "Float": float, "Boolean": bool, "String": str}
    expected = KINDS[kinds[match[2]]] if match[2] in kinds else match[2]
    return f"{name[1] if name else 'an option'}={match[1]}: must be {expected}"


def _not_a_list(match: re.Match[str], _: str) -> str:
    name, _, value = match[1].partition("=")
    return f"{match[1]}: must be a list, as in {name}=[{value or '0,1,2'}]"


def _no_value(_: re.Match[str], text: str) -> str:
    name = re.search(r"full_key: (\S+)", text)
    if name is None:
        return ""
    return f"{name[1]} has no value: choose a complete yaml file (*_schema are for you to extend)"


def _unreadable(_: re.Match[str], text: str) -> str:
    where = re.search(r"LexerNoViableAltException: (.*)", text)
    where = where or re.search(r"input '([^']*)'", text)
    rejected = where[1] if where else _first_paragraph(text)
    advice = "write options as name=value, lists as [1,2], and quote what the shell would change"
    return f"could not read {rejected!r}; {advice}"


# Texts contain the groups of their patterns in braces.
_RULES: tuple[tuple[str, str | Callable[[re.Match[str], str], str]], ...] = (
    (
        r"In '([^']+)': \w+ raised [^\n]+\s+"
        "(?:Key 'experiment' not in 'RunConfig'|Cannot convert 'DictConfig' to string)",
        "{0}.yaml: give options, below a first line # @package _global_",
    ),
    (r"Key '([^']+)' (?:is )?not in '(\w+)'", _unknown_key),
    (
        r"Could not find '(.*?)'\s+Available options in '([^']+)':\s+(.*?)(?:Config search path|$)",
        _unknown_choice,
    ),
    (
        r"In '([^']+)': Could not load '([^']+)'",
        "{0}.yaml names {1} in its defaults, and there is no {1}.yaml",
    ),
    (
        r"Cannot find primary config '([^']*?)(?:\.yaml)?'",
        "--config-name={0}: there is no {0}.yaml; give the folder that holds it by "
        "--config-dir=FOLDER, or leave the name out to start from run.yaml",
    ),
    (
        r"Could not override '(target\.options\.\w+)'",
        "{0} is new to this target: write +{0}=VALUE, or name it in your target's yaml file",
    ),
    (
        r"Key '\w+' is not in struct\s+full_key: (\w+)\s+object_type=dict",
        "the configuration has no {0}: a yaml file for --config-name begins with "
        "defaults: [run, _self_]",
    ),
    (r"Could not (?:override|delete) '([^']*)'", _unknown_group),
    (
        r"Multiple values for \S+\. To override a value use 'override (\S+): (\S+)'",
        "{0} is chosen already: write {0}={1} without +, in a yaml file override /{0}: {1}",
    ),
    (r"force-add of config groups is not supported: '\+\+([^']+)'", "++{0}: write {0}"),
    (r"An item is already at '([^']+)'", "+{0}: is an option already; write it without +"),
    (
        r"Error merging override ~(\S+)\n[^\n]*does not support deletion",
        "~{0}: an option cannot be removed; give it a value",
    ),
    (
        r"Sweep parameters '(.+?)' requires --multirun",
        "{0}: write a list as [0,1,2]; several values are a sweep, with -m",
    ),
    (
        r"Error merging override (\S+)\n.*object_type=\w+Sweep",
        "{0}: ranges and choices are for sweeps; write a list as [0,1,2]",
    ),
    (
        r"Environment variable '([^']+)' not found\"?\s+full_key: (\S+)",
        "{1}: the environment variable {0} is not set",
    ),
    (r"Interpolation key '([^']+)' not found\s+full_key: (\S+)", "{1}: {0} is not an option"),
    (r"Ambiguous value for argument '([^'=\n]+)=([^'\n]*)'", _several_values),
    (r"Value '(.*?)' of type '\w+' could not be converted to (\w+)", _wrong_type),
    (
        r"Error merging override (\S+)\n[^\n]*is not a valid bool",
        "{}: must be true or false",
    ),
    (r"Error merging override (\S+)\n[^\n]*is not a ListConfig, list or tuple", _not_a_list),
    (
        r"Error merging override (\S+)\n[^\n]*(?:is not Optional|NoneType is not a subclass)",
        "{}: must have a value",
    ),
    (r"[Mm]issing mandatory value", _no_value),
    (
        "missing EQUAL",
        "an option has no value: write name=value without spaces, as in target=vgg18",
    ),
    ("mismatched input|token recognition|LexerNoViableAlt|no viable|extraneous input", _unreadable),
)


def _unknown_option(name: str) -> str:
    """The error for a name without a group, such as ``width``, with the options that end in it."""
    candidates = {
        f"{group}.{name}"
        for group in SPECS
        for kind in spec_classes(group)
        if name in field_names(kind)
    }
    hint = nearest(name, {*GROUPS, *field_names(RunConfig)})
    if candidates:
        hint = f"did you mean {' or '.join(sorted(candidates))}?"
    return f"{name} is not an option: {hint}"


def _first_paragraph(text: str) -> str:
    return " ".join(re.sub(r"See https://\S+ for details", "", text.split("\n\n")[0]).split())[:300]
