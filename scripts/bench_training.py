#!/usr/bin/env python3
"""Training throughput of VGG18 beside a plain DataLoader loop, both measured in this run.

    python scripts/bench_training.py [--width 64] [--batch 128] [--seconds 20] [--device cpu]
        [--precision auto]
    python scripts/bench_training.py --pairs --width 16 --batch 16

--pairs trains normalizations alone (Burkholz 2024, Sect. 3.2), each pair of frozen convolutions
collapsed into one, beside the same network with its n + 100 intermediate maps a layer, which at
width 16 take 10 MB a layer and image. Takes about a minute. Each loop runs in its own process,
since the allocator's settings hold for a whole process. The images are random pixels of CIFAR's
size: throughput does not depend on what they show, and nothing is downloaded. The first steps,
which compile and fill caches, are not counted.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time

IMAGES = 10_000


def random_images():
    """CIFAR-sized random pixels as the project's in-memory data set."""
    import torch

    from bnrecon.data import InMemoryImages

    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (IMAGES, 32, 32, 3), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (IMAGES,), generator=generator)
    return InMemoryImages("random", tuple("0123456789"), pixels, labels, pixels[:10], labels[:10])


def vgg18(width: int):
    """The papers' VGG18."""
    from bnrecon.targets.register import build

    return build("vgg", (3, 32, 32), 10, width=width, groups=[2, 3, 4, 4, 4], activation="relu")


def pairs(args: argparse.Namespace, collapsed: bool) -> float:
    """Images a second of training normalizations alone, in float32."""
    import torch

    from bnrecon.runtime import hardware
    from bnrecon.targets.collapsed_pair import CollapsedPair
    from bnrecon.targets.plan import TrainingPlan
    from bnrecon.targets.register import build
    from bnrecon.targets.spec import TrainSpec
    from bnrecon.targets.step import Step

    device = hardware.resolve_device(args.device)
    network = build(
        "vgg_normalization",
        (3, 32, 32),
        10,
        width=args.width,
        groups=[2, 3, 4, 4, 4],
        activation="relu",
        features="he_normal",
        excess=100,
        inner="batchnorm",
    )
    for module in network.modules():
        if isinstance(module, CollapsedPair):
            module.collapsed = collapsed
    plan = TrainingPlan(TrainSpec(lr=1e-3, batch_size=args.batch), torch.float32)
    return train_steps(Step, network, plan, args, device)


def project_loop(args: argparse.Namespace) -> float:
    """Images a second of the project's own trainer."""
    from bnrecon.runtime import hardware
    from bnrecon.targets.plan import TrainingPlan, autocast_dtype
    from bnrecon.targets.spec import TrainSpec
    from bnrecon.targets.step import Step

    device = hardware.resolve_device(args.device)
    dtype = autocast_dtype(args.precision, device)
    plan = TrainingPlan(TrainSpec(batch_size=args.batch), dtype, device.type == "cuda")
    return train_steps(Step, vgg18(args.width), plan, args, device)


def train_steps(step_class, network, plan, args: argparse.Namespace, device) -> float:
    """Images a second of the project's own steps."""
    import torch

    from bnrecon.data.batches import EpochPosition
    from bnrecon.runtime.malloc import keep_freed_memory

    spec, data = plan.spec, random_images()
    network = network.to(device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(
        network.parameters(),
        spec.lr,
        spec.momentum,
        weight_decay=spec.weight_decay,
        fused=True,
    )
    step = step_class(network, optimizer, plan, device)
    sums = torch.zeros(3, dtype=torch.float64, device=device)

    def batches():
        for epoch in itertools.count():
            yield from data.train_batches(EpochPosition(args.batch, 0, epoch), device, plan.dtype)

    def one_step(x, y) -> None:
        nonlocal sums
        sums += step(x, y, spec.lr)

    with keep_freed_memory():
        return throughput(one_step, batches(), args, device)


def plain_loop(args: argparse.Namespace) -> float:
    """Images a second of a tutorial's loop: DataLoader, torchvision transforms, float32."""
    import torch
    from torchvision.transforms import v2

    from bnrecon.runtime import hardware

    device = hardware.resolve_device(args.device)
    data = random_images()
    transform = v2.Compose(
        [
            v2.RandomCrop(32, 4),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.25] * 3),
        ]
    )

    class Pictures(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return IMAGES

        def __getitem__(self, index: int):
            return transform(data.train_x[index].permute(2, 0, 1)), data.train_y[index]

    network = vgg18(args.width).to(device).train()
    optimizer = torch.optim.SGD(network.parameters(), 0.1, 0.9, weight_decay=5e-4)
    loader = torch.utils.data.DataLoader(
        Pictures(), args.batch, shuffle=True, num_workers=2, drop_last=True, persistent_workers=True
    )

    def step(x, y) -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x.to(device)), y.to(device)).backward()
        optimizer.step()

    def batches():
        while True:
            yield from loader

    return throughput(step, batches(), args, device)


def throughput(step, batches, args: argparse.Namespace, device) -> float:
    """Run steps for --seconds after a warm-up and count images a second."""
    import torch

    warm = 30 if device.type == "cuda" else 3
    done, started = 0, 0.0
    for number, (x, y) in enumerate(batches):
        if number == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
        step(x, y)
        if number >= warm:
            done += len(y)
            if time.perf_counter() - started > args.seconds:
                break
    if device.type == "cuda":
        torch.cuda.synchronize()
    return done / (time.perf_counter() - started)


def main() -> None:
    """Run both loops, each in its own process, and print them with their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument(
        "--pairs", action="store_true", help="training normalizations alone, collapsed and not"
    )
    parser.add_argument(
        "--only",
        choices=["project", "plain", "collapsed", "uncollapsed"],
        help="run one loop in this process and print its figure",
    )
    args = parser.parse_args()
    if args.only:
        loops = {"project": project_loop, "plain": plain_loop}
        loops |= {
            "collapsed": lambda args: pairs(args, True),
            "uncollapsed": lambda args: pairs(args, False),
        }
        print(loops[args.only](args))
        return
    figures = {}
    for name in ("uncollapsed", "collapsed") if args.pairs else ("plain", "project"):
        line = [sys.executable, __file__, *sys.argv[1:], "--only", name]
        figures[name] = float(
            subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
        )
    from bnrecon.runtime import hardware

    where = hardware.describe_device(hardware.resolve_device(args.device))
    what = "normalizations alone, float32, " if args.pairs else ""
    print(f"VGG18 of width {args.width}, batch {args.batch}, {what}{where}")
    labels = {
        "uncollapsed": "two convolutions a pair",
        "collapsed": "collapsed pairs",
        "plain": "plain DataLoader loop, float32",
        "project": "bnrecon's trainer",
    }
    (_, slow), (_, fast) = figures.items()
    for name, rate in figures.items():
        print(f"{labels[name]:<32}{rate:>10,.1f} images/s")
    print(f"{fast / slow:.2f} times as many")


if __name__ == "__main__":
    main()
