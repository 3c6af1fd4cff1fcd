"""Predictions of source and target are compared on all test images."""

import pytest
import torch
from torch import nn

from bnrecon.reporting.result import Predictions
from bnrecon.run.evaluation import evaluate_source

CPU = torch.device("cpu")


def classifier(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()


def test_images_of_the_smallest_margins_pass_the_real_source(digits):
    source, collapsed, target = map(classifier, range(3))
    outcome = evaluate_source(source, collapsed, target, digits, CPU, 100)
    batches = list(digits.test_batches(1, CPU))
    with torch.no_grad():
        rows = [(source(x)[0], collapsed(x)[0], target(x)[0], int(y)) for x, y in batches]
    margin = [float(wanted.sort().values[-1] - wanted.sort().values[-2]) for *_, wanted, _ in rows]
    order = sorted(range(len(rows)), key=margin.__getitem__)
    hardest = set(order[:100])
    differ = only_target = only_source = right = 0
    largest = 0.0
    for number, (real, merged, wanted, label) in enumerate(rows):
        mine = int((real if number in hardest else merged).argmax())
        theirs = int(wanted.argmax())
        differ += mine != theirs
        only_target += mine != label == theirs
        only_source += theirs != label == mine
        right += mine == label
        if number in hardest:
            largest = max(largest, float((real - wanted).abs().max()))
    predictions = outcome.predictions
    assert predictions.reserve == pytest.approx(margin[order[100]] / 2 / largest, rel=1e-4)
    assert predictions == Predictions(
        len(rows), differ, only_target, only_source, 100, reserve=predictions.reserve
    )
    assert 0 < only_target != only_source > 0
    assert only_target + only_source < differ
    assert outcome.accuracy == 100 * right / len(rows)
    assert outcome.largest_difference_to_target == pytest.approx(largest)


def test_network_agrees_with_itself(digits):
    network = classifier(0)
    outcome = evaluate_source(network, network, network, digits, CPU, digits.sizes[1])
    assert outcome.predictions == Predictions(digits.sizes[1], 0, 0, 0, digits.sizes[1], None)
    assert outcome.predictions.p_value == 1


def test_all_images_may_pass_the_real_source(digits):
    source, target = classifier(0), classifier(1)
    images = digits.sizes[1]
    outcome = evaluate_source(source, classifier(2), target, digits, CPU, 10**6)
    assert (outcome.source_images, outcome.predictions.source_images) == (images, images)
    assert outcome.predictions.reserve is None
    with torch.no_grad():
        right = sum(int((source(x).argmax(1) == y).sum()) for x, y in digits.test_batches(99, CPU))
    assert outcome.accuracy == pytest.approx(100 * right / images)


def test_fewer_than_64_source_images_give_no_reserve(digits):
    source, target = classifier(0), classifier(1)
    reserves = [
        evaluate_source(source, source, target, digits, CPU, count).predictions.reserve
        for count in (1, 63, 64)
    ]
    assert reserves[:2] == [0, 0] != reserves[2] > 0
    same = evaluate_source(source, source, source, digits, CPU, 1)
    assert (same.source_images, same.predictions.differ, same.predictions.reserve) == (1, 0, 0)
