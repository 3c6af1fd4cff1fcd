"""The folder of a run, and the options and code in its name."""

from __future__ import annotations

from pathlib import Path

from bnrecon.config.composition import option_names
from bnrecon.config.schema import VOLATILE, RunConfig
from bnrecon.data import Images, load
from bnrecon.data.spec import has_pixels_of_the_user
from bnrecon.features.register import distribution
from bnrecon.runtime import digests
from bnrecon.solvers.register import AUTO, lookup
from bnrecon.targets.location import user_code


def run_folder(config: RunConfig, data: Images | None = None) -> Path:
    """The folder of a run, named by a hash of the options that differ from the defaults.

    So an option that is added later does not change the names of old runs. For a user's images
    (``data=folder``, ``imagenet``, registered ones) the hash covers the pixels, for a user's code
    its source. Only a user's images are loaded for it, unless ``data`` has them.
    """
    content = digests.differences_from_defaults(config, VOLATILE)
    if has_pixels_of_the_user(config.data.name):
        if data is None:
            with option_names("data"):
                data = load(config.data)
        content["data.pixels"] = data.checksum()
    content |= code_of_run(config)
    parts = (config.data.name, config.target.name, config.features.name)
    return Path(config.outputs) / "runs" / "-".join([*parts, digests.content_key(content)])


def code_of_run(config: RunConfig) -> dict[str, str]:
    """Fingerprints of user code that a run depends on, by option."""
    codes = {"features.code": distribution(config.features.name).registered.fingerprint}
    name = config.solver.name
    for solver in AUTO if name == "auto" else (name,):
        option = "solver.code" if solver == name else f"solver.{solver}.code"
        codes[option] = lookup(solver).registered.fingerprint
    fingerprints = {option: code for option, code in codes.items() if code is not None}
    return user_code(config.target_request) | fingerprints
