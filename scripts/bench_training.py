#!/usr/bin/env python3
"""Training throughput of VGG18 compared with a plain DataLoader loop, both measured in this run.

    python scripts/bench_training.py [--width 64] [--batch 128] [--seconds 20] [--device cpu]
    python scripts/bench_training.py --pairs --width 16 --batch 16
    python scripts/bench_training.py --rebuilt he_normal --width 16 --batch 64
    python scripts/bench_training.py --only project     # one loop: project, plain, collapsed, ...

--pairs trains only normalizations (Burkholz 2024, Sect. 3.2), with each pair of frozen convolutions
collapsed into one, and compares with the same network with its n + 100 intermediate maps per layer,
which at width 16 take 10 MB per layer and image. --rebuilt rebuilds the network from these features
and times steps of the target, its source and the collapsed source: the fastest of five, for the
source of two (--only collapsed skips it). The other loops run in separate processes, as the
allocator's settings hold for a whole process. The images are random pixels of CIFAR's size. The
first steps, which compile and fill caches, are not counted.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator

import command_line
import pandas as pd
import torch
from bench_rows import apart, timed
from torchvision.transforms import v2

import bnrecon
from bnrecon.data import InMemoryImages
from bnrecon.data.batches import EpochPosition
from bnrecon.runtime import hardware
from bnrecon.runtime.malloc import keep_freed_memory
from bnrecon.targets.collapsed_pair import CollapsedPair
from bnrecon.targets.location import autocast_dtype
from bnrecon.targets.register import build
from bnrecon.targets.spec import TrainSpec
from bnrecon.targets.step import Step, TrainingPlan
from bnrecon.targets.trainer import Trainer

IMAGES = 10_000


def random_images() -> InMemoryImages:
    """Random pixels of CIFAR's size as the project's in-memory data set."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (IMAGES, 32, 32, 3), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (IMAGES,), generator=generator)
    return InMemoryImages("random", tuple("0123456789"), pixels, labels, pixels[:10], labels[:10])


def vgg18(width: int, family: str = "vgg", **options) -> torch.nn.Module:
    """The papers' VGG18."""
    groups = [2, 3, 4, 4, 4]
    return build(family, (3, 32, 32), 10, width=width, groups=groups, activation="relu", **options)


def project_loop(args: argparse.Namespace) -> float:
    """Images per second of the project's steps; with pairs, in float32."""
    if args.only == "project":
        network, spec = vgg18(args.width), TrainSpec(batch_size=args.batch)
        plan = TrainingPlan(spec, autocast_dtype("auto", args.device), args.device.type == "cuda")
    else:
        options = {"features": "he_normal", "excess": 100, "inner": "batchnorm"}
        network = vgg18(args.width, "vgg_normalization", **options)
        for pair in (each for each in network.modules() if isinstance(each, CollapsedPair)):
            pair.collapsed = args.only == "collapsed"
        spec = TrainSpec(lr=1e-3, batch_size=args.batch)
        plan = TrainingPlan(spec, torch.float32)
    trainer = Trainer(network, random_images(), plan, args.device)
    step = Step(trainer.network.train(), trainer.optimizer, plan, args.device)
    with keep_freed_memory():
        batches = itertools.chain.from_iterable(
            trainer.data.train_batches(EpochPosition(args.batch, 0, epoch), args.device, plan.dtype)
            for epoch in itertools.count()
        )
        return throughput(lambda x, y: step(x, y, spec.lr), batches, args.seconds)


def plain_loop(args: argparse.Namespace) -> float:
    """Images per second of a tutorial's loop: DataLoader, torchvision transforms, float32."""
    steps = [v2.RandomCrop(32, 4), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
    transform = v2.Compose([*steps, v2.Normalize([0.5] * 3, [0.25] * 3)])

    class Pictures(torch.utils.data.TensorDataset):
        def __getitem__(self, index: int):
            x, y = super().__getitem__(index)
            return transform(x.permute(2, 0, 1)), y

    data, network = random_images(), vgg18(args.width).to(args.device).train()
    optimizer = torch.optim.SGD(network.parameters(), 0.1, 0.9, weight_decay=5e-4)
    pictures = Pictures(data.train_x, data.train_y)
    options = {"shuffle": True, "drop_last": True, "num_workers": 2, "persistent_workers": True}
    options |= {"multiprocessing_context": "fork"}  # spawned processes default to spawn
    loader = torch.utils.data.DataLoader(pictures, args.batch, **options)

    def step(x, y) -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x.to(args.device)), y.to(args.device)).backward()
        optimizer.step()

    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    return throughput(step, batches, args.seconds)


def throughput(step: Callable, batches: Iterator, seconds: float) -> float:
    """Run steps for so many seconds after a warm-up and count images per second."""
    for x, y in itertools.islice(batches, 30 if torch.cuda.is_initialized() else 3):
        step(x, y)

    def train() -> int:
        done, started = 0, time.perf_counter()
        while time.perf_counter() - started <= seconds:
            x, y = next(batches)
            step(x, y)
            done += len(y)
        return done

    done, times = timed(train)
    return done / times["seconds"]


def rebuilt_steps(args: argparse.Namespace) -> None:
    """Print the seconds of a step of a target, its source, and the collapsed source."""
    target = vgg18(args.width).to(args.device).eval()
    source = bnrecon.reconstruct(target, args.rebuilt).network
    networks = {"target": target, "source, collapsed": bnrecon.collapse(source, trainable=True)}
    if args.only != "collapsed":
        networks["source"] = source
    x = torch.randn(args.batch, 3, 32, 32, device=args.device)
    y = torch.randint(10, (args.batch,), device=args.device)

    def step(network: torch.nn.Module, training: bool) -> None:
        network.train(training).zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()

    fastest = {}
    with keep_freed_memory():
        for name, network in networks.items():
            calls = (2 if network is source else 5) * [network]
            fastest[name] = [
                min(timed(step, each, training)[1]["seconds"] for each in calls)
                for training in (False, True)
            ]
    seconds = pd.DataFrame(fastest, index=["seconds of a step: eval", "training"]).T
    times = (seconds / seconds.loc["target"]).add_suffix(" / target")
    print(seconds.round(2).join(times.round(1)).to_string())


LOOPS = {
    "plain": (plain_loop, "plain DataLoader loop, float32"),
    "project": (project_loop, "bnrecon's trainer"),
    "uncollapsed": (project_loop, "two convolutions a pair, float32"),
    "collapsed": (project_loop, "collapsed pairs, float32"),
}


def main() -> None:
    """Run both loops, each in its own process, and print them with their ratio."""
    options = {"width": 64, "batch": 128, "seconds": 20.0, "device": "auto", "pairs": False}
    options |= {"rebuilt": "", "only": ""}
    args = command_line.parser(__doc__, choices={"only": LOOPS}, **options).parse_args()
    args.device = hardware.resolve_device(args.device)
    if args.only and not args.rebuilt:
        print(LOOPS[args.only][0](args))
        return
    where = hardware.describe_device(args.device)
    print(f"VGG18 of width {args.width}, batch {args.batch}, {where}")
    if args.rebuilt:
        rebuilt_steps(args)
        return
    rates = []
    for name in ("uncollapsed", "collapsed") if args.pairs else ("plain", "project"):
        args.only, (loop, words) = name, LOOPS[name]
        rates.append(apart(loop, args))
        print(f"{words:<34}{rates[-1]:>10,.1f} images/s")
    print(f"{rates[1] / rates[0]:.2f} times as many")


if __name__ == "__main__":
    main()
