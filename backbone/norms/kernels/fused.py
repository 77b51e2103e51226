"""Weighted batch normalization as one autograd function: the numbers of `weighted.reference` at BN's cost.

The activation is touched only in four passes: sample moments, scale and shift, gradient sums, input gradient.
They are tensor operations here (`TensorPasses`), C in `compiled_passes` and kernels in `triton_passes`. What lies
between them, `statistics` and `coefficients`, works on per-sample moments, small (N, C) tensors, so that no switch
costs a pass. With
s = gamma (sigma2 + eps)^-1/2 and g the gradient of the output:

    forward     out = a s + (beta - mu s)
    backward    da  = g s + a p + q

where p_n = 2 w_n dsigma2 / HW, because sigma2 is quadratic in a, and q_n is all that does not depend on the position:
what comes through mu, and the centre of sigma2.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from backbone.norms.kernels.weighted import Normalized, SampleWeights, compute_dtype, filled_weights, outside_autocast

SUMMANDS = 8192  # positions of channels-last maps that one call adds up
CHUNK = 2**21  # elements of an intermediate result: 8 MB of float32, within the last cache of most CPUs


class TensorPasses:
    """The passes as tensor operations; (N, C, HW) or, for channels-last, (N, HW, C) is the order in memory.

    The forms were chosen by timing on CPUs, separately for the two layouts. Two borrowed kernels do much of the work:
    BN's own for testing is the fastest scale and shift, and its backward the fastest sums over channels-last maps.
    """

    name = "fused"

    @staticmethod
    def moments(a: torch.Tensor, *, exact: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(C,) guesses of the channels' means, (N, C) distances of the sample means to them, and (N, C) sums over
        space of the squared distances to the sample means.

        Everything is taken about the guess, so that a large mean costs no precision, and the squares are corrected
        afterwards, which saves a pass over memory. Their error is small against the variance of the batch; where single
        variances count, `exact` takes them about their own means.
        """
        flat, space = flattened(a)
        guess = flat[0].mean(space - 1)
        center = guess.unsqueeze(1) if space == 2 else guess
        distance, squares = by_chunks(lambda x: _shifted_moments(x, space, center, exact), flat)
        return guess, distance, squares

    @staticmethod
    def scale_and_shift(a, scale, shift) -> torch.Tensor:
        nought, one = torch.zeros_like(scale), torch.ones_like(scale)
        return torch.batch_norm(a, scale, shift, nought, one, False, 0.0, 0.0, False)

    @staticmethod
    def gradient_sums(g, a, mu, *, per_sample: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums of g and of g (a - mu): over space, (N, C), if asked per sample; else also over samples, (C,)."""
        if is_channels_last(a) and not per_sample and a[0, 0].numel() <= SUMMANDS:
            return _channels_last_sums(g.to(mu.dtype), a.to(mu.dtype), mu)
        (g, space), (a, _) = flattened(g), flattened(a)
        center = mu.unsqueeze(1) if space == 2 else mu
        total, products = by_chunks(
            lambda g, a: (g.sum(space), torch.sub(a, center, out=scratch_like(a)).mul_(g).sum(space)), g, a
        )
        return (total, products) if per_sample else (total.sum(0), products.sum(0))

    @staticmethod
    def input_gradient(g, a, scale, slope, offset) -> torch.Tensor:
        """g s + a p + q with (C,) s and (N, C) p and q."""
        dtype, space = g.dtype, (1,) * (g.dim() - 2)
        g, a = g.to(scale.dtype), a.to(scale.dtype)
        slope, offset, scale = (
            slope.view(*slope.shape, *space),
            offset.view(*offset.shape, *space),
            scale.view(-1, *space),
        )
        if is_channels_last(a):
            out = torch.addcmul(offset, a, slope, out=torch.empty_like(a)).addcmul_(g, scale)
        else:
            out = (a * slope).add_(offset).addcmul_(g, scale)
        return out.to(dtype)

    @staticmethod
    def statistics(*arguments) -> Statistics:
        return statistics(*arguments)

    @staticmethod
    def coefficients(*arguments) -> Coefficients:
        return coefficients(*arguments)


def _shifted_moments(x: torch.Tensor, space: int, center: torch.Tensor, exact: bool) -> tuple[torch.Tensor, ...]:
    shifted = torch.sub(x, center, out=scratch_like(x))
    distance = shifted.mean(space)
    if exact:
        return distance, _sum_of_squares(shifted.sub_(distance.unsqueeze(space)), space)
    return distance, _sum_of_squares(shifted, space).addcmul_(distance, distance, value=-x.shape[space])


def _channels_last_sums(g: torch.Tensor, a: torch.Tensor, mu: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """BN's backward adds one position after the other, so it gets only as many as keep the rounding small."""
    ones, total, products = torch.ones_like(mu), 0, 0
    samples = max(1, SUMMANDS // a[0, 0].numel())
    for g_part, a_part in zip(g.split(samples), a.split(samples), strict=True):
        _, product, part = torch.ops.aten.native_batch_norm_backward(
            g_part, a_part, ones, mu, ones, None, None, False, 0.0, [False, True, True]
        )
        total, products = total + part, products + product
    return total, products


def _sum_of_squares(x: torch.Tensor, space: int) -> torch.Tensor:
    """Of a tensor that is not needed any more. A vector norm is fast over a contiguous axis only."""
    return torch.linalg.vector_norm(x, dim=2).square_() if space == 2 else x.square_().sum(1)


_spaces = threading.local()


def scratch(dtype: torch.dtype, device: torch.device, size: int) -> torch.Tensor:
    """Working space, the same memory every time: fresh memory would be cold in the cache."""
    spaces, key = vars(_spaces), f"{dtype} {device}"
    space = spaces.get(key)
    if space is None or len(space) < size:
        space = spaces[key] = torch.empty(size, dtype=dtype, device=device)
    return space


def scratch_like(like: torch.Tensor) -> torch.Tensor:
    return scratch(like.dtype, like.device, max(like.numel(), CHUNK))[: like.numel()].view(like.shape)


def by_chunks(function: Callable, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`function` of a few samples at a time, about CHUNK elements; its results joined."""
    samples = max(1, CHUNK // tensors[0].stride(0))
    if samples >= len(tensors[0]):
        return function(*tensors)
    parts = [function(*chunk) for chunk in zip(*(tensor.split(samples) for tensor in tensors), strict=True)]
    return tuple(torch.cat(results) for results in zip(*parts, strict=True))


def is_channels_last(a: torch.Tensor) -> bool:
    return a.dim() == 4 and not a.is_contiguous() and a.is_contiguous(memory_format=torch.channels_last)


def flattened(a: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A view with space in one axis, in the type of the computation, and that axis: 2, or 1 for channels-last."""
    if a.dtype != (dtype := compute_dtype(a)):
        a = a.to(dtype)
    if is_channels_last(a):
        return a.permute(0, 2, 3, 1).flatten(1, 2), 1
    return a.view(a.shape[0], a.shape[1], -1), 2


class Statistics(NamedTuple):
    """(C,) tensors."""

    mu: torch.Tensor
    sigma2: torch.Tensor
    inverse: torch.Tensor  # (sigma2 + eps)^-1/2
    scale: torch.Tensor  # gamma times that
    shift: torch.Tensor  # beta - mu scale


class Coefficients(NamedTuple):
    d_gamma: torch.Tensor
    slope: torch.Tensor  # (N, C) p of the input's gradient g s + a p + q
    offset: torch.Tensor  # (N, C) q
    d_weights: torch.Tensor


# With small maps a layer costs what its calls cost, so factors are passed along as arguments of other operations.


def statistics(moments, weights, same_group, gamma, beta, area: int, eps: float) -> Statistics:
    mu, second, _ = _weighted(moments, weights, same_group, area)
    sigma2 = torch.addmv(mu, second.t(), weights, beta=0, alpha=1 / area)
    inverse = (sigma2 + eps).rsqrt_()
    scale = gamma * inverse
    return Statistics(mu, sigma2, inverse, scale, torch.addcmul(beta, mu, scale, value=-1))


def _weighted(moments, weights, same_group, area: int):
    """mu; what sigma2 is the weighted mean of, times the area; the distances of the sample means to its centre."""
    guess, distance, squares = moments
    # Relative to the guess. What the weights lack to 1 pulls the mean towards 0.
    center = torch.mv(distance.t(), weights).addcmul_(guess, 1 - weights.sum(), value=-1)
    spread = distance - (center if same_group is None else same_group @ distance)
    return guess + center, torch.addcmul(squares, spread, spread, value=area), spread


def coefficients(sums, g_mu, g_sigma2, moments, weights, same_group, of: Statistics, area: int) -> Coefficients:
    (d_beta, d_scale), (guess, distance, _) = sums, moments
    d_gamma = d_scale * of.inverse
    nothing = torch.zeros_like(of.mu) if g_mu is None or g_sigma2 is None else None
    d_sigma2 = torch.addcmul(nothing if g_sigma2 is None else g_sigma2, d_gamma * of.scale, of.inverse, value=-0.5)
    d_mu = torch.addcmul(nothing if g_mu is None else g_mu, of.scale, d_beta, value=-1)
    _, second, spread = _weighted(moments, weights, same_group, area)
    slope = torch.addr(spread, weights, d_sigma2, beta=0, alpha=2 / area)
    if same_group is None:
        # The weighted mean of the spread is what the weights lack to 1, times mu.
        d_mu.addcmul_(d_sigma2, of.mu * (1 - weights.sum()), value=-2)
        level = torch.addcmul(d_mu, d_sigma2, of.mu, value=-2)
        offset = torch.addr(spread, weights, level, beta=0, alpha=1 / area)
    else:
        pull = slope * spread
        offset = torch.addr(pull - same_group @ pull - slope * (distance + guess), weights, d_mu, alpha=1 / area)
    d_weights = torch.mv(distance, d_mu).addmv_(second, d_sigma2, alpha=1 / area).add_(torch.dot(guess, d_mu))
    return Coefficients(d_gamma, slope, offset, d_weights)


class _WeightedBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, weights, gamma, beta, running_weights, same_group, eps: float, balanced_affine: bool, passes):
        area = a.numel() // (a.shape[0] * a.shape[1])
        moments = passes.moments(a, exact=same_group is not None)
        found = passes.statistics(moments, weights, same_group, gamma, beta, area, eps)
        out = passes.scale_and_shift(a, found.scale, found.shift)
        # What is kept must not be an output, or the two would keep each other alive.
        mu, sigma2 = found.mu.detach(), found.sigma2.detach()
        ctx.save_for_backward(a, weights, same_group)
        ctx.moments, ctx.found, ctx.area = moments, found, area
        ctx.passes, ctx.balanced_affine = passes, balanced_affine
        ctx.set_materialize_grads(False)
        if running_weights is None:
            return out, mu, sigma2
        running_mu, second, _ = _weighted(moments, running_weights, None, area)
        running = running_mu, torch.mv(second.t(), running_weights) / area
        ctx.mark_non_differentiable(*running)
        return out, mu, sigma2, *running

    @staticmethod
    @once_differentiable
    def backward(ctx, g, g_mu, g_sigma2, *_running):
        a, weights, same_group = ctx.saved_tensors
        found = ctx.found
        g = torch.zeros_like(a) if g is None else g
        g = g.contiguous(memory_format=torch.channels_last if is_channels_last(a) else torch.contiguous_format)
        sums = of_affine = ctx.passes.gradient_sums(g, a, found.mu, per_sample=ctx.balanced_affine)
        if ctx.balanced_affine:
            # The statistics feel the plain sums; gamma and beta those in which every group counts the same.
            of_affine = tuple(len(weights) * weights @ of_sample for of_sample in sums)
            sums = tuple(of_sample.sum(0) for of_sample in sums)
        found_too = ctx.passes.coefficients(sums, g_mu, g_sigma2, ctx.moments, weights, same_group, found, ctx.area)
        d_a = ctx.passes.input_gradient(g, a, found.scale, found_too.slope, found_too.offset)
        d_gamma = of_affine[1] * found.inverse if ctx.balanced_affine else found_too.d_gamma
        return d_a, found_too.d_weights, d_gamma, of_affine[0], None, None, None, None, None


@outside_autocast
def fused(a: torch.Tensor, by: SampleWeights, gamma, beta, eps: float, passes: Any = TensorPasses) -> Normalized:
    if gamma.dtype != compute_dtype(a):
        raise TypeError(f"activations of {a.dtype} need a scale and shift of {compute_dtype(a)}, got {gamma.dtype}")
    if not a.is_contiguous() and not is_channels_last(a):
        a = a.contiguous()
    weights = filled_weights(by.weights, gamma, a.shape[0])
    out, mu, sigma2, *running = _WeightedBatchNorm.apply(
        a, weights, gamma, beta, by.running, by.same_group, eps, by.balanced_affine, passes
    )
    return Normalized(out, mu, sigma2, *(running or (mu, sigma2)))
