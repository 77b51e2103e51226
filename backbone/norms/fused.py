"""Weighted batch normalization as one autograd function: the numbers of `weighted.reference` at BN's cost.

The activation is touched only in four passes: sample moments, scale and shift, gradient sums, input gradient.
They are tensor operations here (`TensorPasses`) and kernels in `triton_passes`. Everything between them works on
per-sample moments, small (N, C) tensors, so that no switch of the statistics costs a pass. With
s = gamma (sigma2 + eps)^-1/2 and g the gradient of the output:

    forward     out = a s + (beta - mu s)
    backward    da  = g s + a p + q

where p_n = 2 w_n dsigma2 / HW, because sigma2 is quadratic in a, and q_n is all that does not depend on the position:
what comes through mu, and the centre of sigma2.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from backbone.norms.weighted import Normalized, SampleWeights, compute_dtype, filled_weights, outside_autocast

SUMMANDS = 8192  # positions of channels-last maps that one call adds up
CHUNK = 2**21  # elements of an intermediate result: 8 MB of float32, within the last cache of most CPUs


class TensorPasses:
    """The passes as tensor operations; (N, C, HW) or, for channels-last, (N, HW, C) is the order in memory.

    The forms were chosen by timing on CPUs, separately for the two layouts. Two borrowed kernels do much of the work:
    BN's own for testing is the fastest scale and shift, and its backward the fastest sums over channels-last maps.
    """

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
    def scale_and_shift(a, mu, sigma2, gamma, beta, eps: float) -> torch.Tensor:
        return torch.batch_norm(a, gamma, beta, mu, sigma2, False, 0.0, eps, False)

    @staticmethod
    def gradient_sums(g, a, mu, *, per_sample: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums of g and of g (a - mu): over space, (N, C), if asked per sample; else also over samples, (C,)."""
        if is_channels_last(a) and not per_sample and a[0, 0].numel() <= SUMMANDS:
            return _channels_last_sums(g.to(mu.dtype), a.to(mu.dtype), mu)
        (g, space), (a, _) = flattened(g), flattened(a)
        center = mu.unsqueeze(1) if space == 2 else mu
        total, products = by_chunks(
            lambda g, a: (g.sum(space), torch.sub(a, center, out=scratch(a)).mul_(g).sum(space)), g, a
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


def _shifted_moments(x: torch.Tensor, space: int, center: torch.Tensor, exact: bool) -> tuple[torch.Tensor, ...]:
    shifted = torch.sub(x, center, out=scratch(x))
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


def scratch(like: torch.Tensor) -> torch.Tensor:
    """Working space of a tensor's size, the same memory every time: fresh memory would be cold in the cache."""
    size, spaces, key = like.numel(), vars(_spaces), f"{like.dtype} {like.device}"
    space = spaces.get(key)
    if space is None or len(space) < size:
        space = spaces[key] = torch.empty(max(size, CHUNK), dtype=like.dtype, device=like.device)
    return space[:size].view(like.shape)


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


class _WeightedBatchNorm(torch.autograd.Function):
    # With small maps a layer costs what its calls cost, so factors are passed along as arguments of other operations.

    @staticmethod
    def forward(ctx, a, weights, gamma, beta, same_task, eps: float, balanced_affine: bool, passes: Any):
        area = a[0, 0].numel()
        guess, distance, squares = passes.moments(a, exact=same_task is not None)
        mean = distance + guess
        # The distances of the sample means to the centre that sigma2 is taken about; mu is the weighted mean of all.
        shift = torch.mv(distance.t(), weights)
        missing = 1 - weights.sum()  # what the weights lack to 1 pulls mu from the guess towards 0
        mu = torch.addcmul(shift + guess, guess, missing, value=-1)
        spread = distance - (
            torch.addcmul(shift, guess, missing, value=-1) if same_task is None else same_task @ distance
        )
        second = torch.addcmul(squares, spread, spread, value=area)
        sigma2 = torch.addmv(mu, second.t(), weights, beta=0, alpha=1 / area)
        out = passes.scale_and_shift(a, mu, sigma2, gamma, beta, eps)
        ctx.save_for_backward(a, weights, gamma, mu, sigma2, same_task)
        ctx.moments = mean, spread, second
        ctx.passes, ctx.balanced_affine, ctx.eps, ctx.area = passes, balanced_affine, eps, area
        mean = mean.detach()  # the one in ctx must not be an output, or the two would keep each other alive
        ctx.mark_non_differentiable(mean, squares)
        ctx.set_materialize_grads(False)
        return out, mu, sigma2, mean, squares

    @staticmethod
    def backward(ctx, g, g_mu, g_sigma2, _mean, _squares):
        a, weights, gamma, mu, sigma2, same_task = ctx.saved_tensors
        (mean, spread, second), area = ctx.moments, ctx.area
        g = torch.zeros_like(a) if g is None else g
        g = g.contiguous(memory_format=torch.channels_last if is_channels_last(a) else torch.contiguous_format)
        d_beta, d_scale = ctx.passes.gradient_sums(g, a, mu, per_sample=ctx.balanced_affine)
        inverse = (sigma2 + ctx.eps).rsqrt_()
        scale = gamma * inverse
        d_affine = d_scale * inverse, d_beta
        if ctx.balanced_affine:
            # The statistics feel the plain sums; gamma and beta those in which every task counts the same.
            d_scale, d_beta = d_scale.sum(0), d_beta.sum(0)
            d_affine = tuple(len(weights) * weights @ sums for sums in d_affine)
        nothing = torch.zeros_like(mu) if g_mu is None or g_sigma2 is None else None
        d_sigma2 = torch.addcmul(
            nothing if g_sigma2 is None else g_sigma2, d_scale * scale, inverse.square_(), value=-0.5
        )
        d_mu = torch.addcmul(nothing if g_mu is None else g_mu, scale, d_beta, value=-1)
        slope = torch.addr(spread, weights, d_sigma2, beta=0, alpha=2 / area)
        if same_task is None:
            d_mu.addcmul_(d_sigma2, torch.mv(spread.t(), weights), value=-2)
            level = torch.addcmul(d_mu, d_sigma2, mu, value=-2)
            offset = torch.addr(spread, weights, level, beta=0, alpha=1 / area)
        else:
            pull = slope * spread
            offset = torch.addr(pull - same_task @ pull - slope * mean, weights, d_mu, alpha=1 / area)
        d_a = ctx.passes.input_gradient(g, a, scale, slope, offset)
        d_weights = None
        if ctx.needs_input_grad[1]:
            d_weights = torch.mv(mean, d_mu).addmv_(second, d_sigma2, alpha=1 / area)
        return d_a, d_weights, *d_affine, None, None, None, None


@outside_autocast
def fused(a: torch.Tensor, by: SampleWeights, gamma, beta, eps: float, passes: Any = TensorPasses) -> Normalized:
    if not a.is_contiguous() and not is_channels_last(a):
        a = a.contiguous()
    weights = filled_weights(by, gamma.new_empty(a.shape[0], 0))
    return Normalized(*_WeightedBatchNorm.apply(a, weights, gamma, beta, by.same_task, eps, by.balanced_affine, passes))
