"""How far a step of SGD moves a layer behind a normalization, relative to its weight.

A normalization behind a layer makes the loss L a function of the direction of the layer's weight W
alone, up to the normalization's eps: L(cW) = L(W), and the gradient is ∇L(cW) = ∇L(W) / c. What
counts is the step relative to the weight. Let the layer have fan-in f, and compare two ways to
train it, by how far a first step of SGD at rate η goes along the gradient, relative to ‖W‖:

- The weight itself, started as PyTorch does, with variance 1 / (3 f). With the gradient Ĝ at
  entries of root mean square 1, the gradient is sqrt(3 f) Ĝ and the relative step 3 f η Ĝ.
- Scales γ of a pair, W = B diag(γ) A = M γ, started at γ = g. A step of γ moves W by -η M Mᵀ ∇L(W).
  Let m be the mean over rows of diag(M Mᵀ), 4 / f for he_normal features. As the features have mean
  0 and are independent, W has mean square g² m, and M Mᵀ acts along the gradient as m on average.
  The relative step is η m Ĝ / (g² m) = η Ĝ / g²: the features' size drops out.

So scales that start at 1 go 3 f times less far along the gradient than weights (432 at width 16,
2,700 at width 100), and those that start at g = 1 / sqrt(3 f) as far as weights, on average over
features. The step's whole length is larger: E‖M Mᵀ G‖² is about m² (1 + n / c1) ‖G‖² for M (n, c1),
so that at equal distance along the gradient it is sqrt(1 + n / c1) times that of weights, 1.4 for
c1 near n. What it has across the gradient is the conditioning, which the start does not change.

A start g at rate η is the start 1 at rate η / g² of the scales alone. By the two identities above
γ / g takes the steps of that training, with momentum, and in any schedule that is multiplied alike
(warm-up, cosine); with weight decay λ where the other training has λ g², since a step shrinks γ by
η λ in both. Not covered: the normalization's eps, which counts for more where W is small; the
normalizations' own scales and shifts, which keep the rate η here; and λ itself. With the same λ
decay shrinks W, as exp(-Ση λ / (1 - momentum)) where no step lengthens it, until decay and steps
balance at a relative step that no start decides. The exponent is 2.9 at 30 epochs of CIFAR-10 in
batches of 128, with the peak rate 0.1, momentum 0.9 and λ = 5e-4, and 29 at 300 epochs: a start
matters in short trainings, and in long ones without decay.

With a normalization between the two convolutions W = M diag(1/σ) γ, σ being the standard deviations
of A x, and the same holds, since the size of M diag(1/σ) drops out. The inner shifts β start at 0.
The outer normalization removes their sum B β in an image's interior, but not at its border, where
zeros are padded. Their gradient is of the order 1 / g too: relative to W, a step at the border is
3 f times as long with g = 1 / sqrt(3 f) as with 1, and trained weights have nothing like it.
"""

from __future__ import annotations


def start_factor(fan_in: int, as_weights: bool, start: str, step: float) -> float:
    """What the usual start of a layer's trained numbers is multiplied by.

    Args:
        fan_in: f = c0 kh kw.
        as_weights: the usual start is that of PyTorch's weights, of root mean square
            1 / sqrt(3 f); it is 1 otherwise.
        start: the wanted root mean square: ``usual``, ``ones`` (1) or ``weights``.
        step: the start is divided by its root, so that relative steps are so many times as long.

    >>> round(start_factor(144, as_weights=False, start="weights", step=1) ** -2)
    432
    >>> start_factor(144, as_weights=True, start="weights", step=4)
    0.5
    """
    weights = (3 * fan_in) ** -0.5
    usual = weights if as_weights else 1.0
    return {"usual": usual, "ones": 1.0, "weights": weights}[start] / usual / step**0.5
