"""Networks that a study trains: one piece each, its test accuracy and training accuracy as a line of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import torch
from torch import nn

from bnrecon.config import composition
from bnrecon.data import DataSpec, Images, load
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction.cells import refuse_compared
from bnrecon.reproduction.experiments import Pieces
from bnrecon.runtime import hardware
from bnrecon.targets.store import Trained, obtain_target

__all__ = ["over_seeds", "target_of", "trained", "trainings"]


Look = Callable[[nn.Module, Images, torch.device], dict[str, float]]


def target_of(words: Sequence[str]) -> tuple[Trained, Images, torch.device]:
    """The target of the run that these options describe, taken from the store or trained, its data and its device."""
    asked = composition.compose(words)
    device = hardware.resolve_device(asked.device)
    data = load(DataSpec(**dataclasses.asdict(asked.data)))
    return obtain_target(asked, data, device), data, device


def trained(words: Sequence[str], line: dict, look: Look | None = None) -> pd.DataFrame:
    """Train the network that these options describe, or take the trained one: it goes on from its own checkpoint.

    ``line`` names the row, ``look`` adds to it what is to be seen in the trained network.
    """
    found, data, device = target_of(words)
    asked = found.about["config"]
    about = {
        "width": asked["target"]["width"],
        "epochs": asked["train"]["epochs"],
        "accuracy": found.about["accuracy"],
    }
    about |= {"training accuracy": found.about["log"][-1]["accuracy"]}
    about |= {"images": found.about["images"], "seconds": found.about["seconds"]}
    return pd.DataFrame(
        [line | about | ({} if look is None else look(found.network, data, device))]
    )


def trainings(
    settings: Mapping[str, Sequence[str]],
    common: Sequence[str],
    seeds: Sequence[int],
    words: Sequence[str],
    look: Look | None = None,
) -> Pieces:
    """A piece for each setting and seed: the setting's options behind the common ones, the user's ``words`` last.

    Raises ``UserError`` for a word that sets what the settings, or the seeds, are told apart by.
    """
    refuse_compared(
        words,
        {word.partition("=")[0] for options in settings.values() for word in options}
        | {"train.seed"},
    )
    found = {}
    for seed in seeds:  # every setting once, before any is run again
        for name, options in settings.items():
            given, line = (
                [*common, *options, f"train.seed={seed}", *words],
                {"setting": name, "seed": seed},
            )
            found[f"{name}, seed {seed}"] = lambda given=given, line=line: trained(
                given, line, look
            )
    return found


def over_seeds(
    frame: pd.DataFrame,
    heading: str,
    reported: Mapping[str, Mapping[str, str]],
    paired: bool = True,
    falling: bool = False,
) -> pd.DataFrame:
    """One line a setting over its seeds; ``reported`` holds what the paper has, by setting and column.

    ``paired``: a seed's initial weights and batches are the same in all settings, which are compared with the first one seed by seed.
    ``falling``: the paper has the settings in falling order; each is compared with the one above it, too: is it significantly lower?
    """
    lines = []
    accuracies = {
        name: group.set_index("seed")["accuracy"]
        for name, group in frame.groupby("setting", sort=False)
    }
    names = list(accuracies)
    for number, (name, group) in enumerate(frame.groupby("setting", sort=False)):
        line = {
            heading: name,
            "width": int(group["width"].iloc[0]),
            "epochs": int(group["epochs"].iloc[0]),
        }
        line |= reported.get(name, {})
        line["training accuracy"] = mean_interval(list(group["training accuracy"])).format()
        line["test accuracy"] = mean_interval(list(group["accuracy"])).format()
        if number and paired and len(more := _difference(accuracies[name], accuracies[names[0]])):
            line["test, more than the first line's, by seed"] = mean_interval(more).format()
        if (
            number
            and falling
            and len(more := _difference(accuracies[name], accuracies[names[number - 1]]))
        ):
            interval = mean_interval(more)
            line["than the line above's"] = interval.format()
            certain = interval.half_width is not None and abs(interval.mean) > interval.half_width
            line["lower, as in the paper"] = (
                ("yes" if interval.mean < 0 else "no") if certain else "open"
            )
        lines.append(line | {"seconds": f"{group['seconds'].mean():.0f}"})
    return pd.DataFrame(lines).fillna("")


def _difference(one: pd.Series, other: pd.Series) -> list[float]:
    return list((one - other).dropna())
