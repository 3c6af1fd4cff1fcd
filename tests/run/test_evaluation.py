"""Predictions of source and target are compared on all test images."""

import torch
from torch import nn

from bnrecon.reporting.result_parts import Predictions
from bnrecon.run.evaluation import evaluate_source

CPU = torch.device("cpu")


def classifier(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()


def test_predictions_are_those_of_the_real_source_first_and_then_of_the_collapsed_one(digits):
    source, collapsed, target = map(classifier, range(3))
    outcome = evaluate_source(source, collapsed, target, digits, CPU, 100)
    batches = list(digits.test_batches(1, CPU))
    differ = only_target = only_source = right = 0
    for number, (x, label) in enumerate(batches):
        with torch.no_grad():
            mine = int((source if number < 100 else collapsed)(x).argmax())
            theirs = int(target(x).argmax())
        differ += mine != theirs
        only_target += mine != label == theirs
        only_source += theirs != label == mine
        right += mine == label
    counts = Predictions(len(batches), differ, int(only_target), int(only_source))
    assert outcome.predictions == counts
    assert 0 < only_target != only_source > 0
    assert only_target + only_source < differ
    assert outcome.percent == 100 * int(right) / len(batches)


def test_a_network_predicts_as_it_does_itself(digits):
    network = classifier(0)
    outcome = evaluate_source(network, network, network, digits, CPU, 64)
    assert outcome.predictions == Predictions(digits.sizes[1], 0, 0, 0)
    assert outcome.predictions.p_value == 1
