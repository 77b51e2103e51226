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

from backbone.norms.weighted import Normalized, SampleWeights, compute_dtype, filled_weights

CHUNK = 2**21  # elements of an intermediate result: 8 MB of float32, within the last cache of most CPUs


class TensorPasses:
    """The passes as tensor operations; (N, C, HW) or, for channels-last, (N, HW, C) is the order in memory.

    The forms were chosen by timing on CPUs, separately for the two layouts. Two borrowed kernels do much of the work:
    BN's own for testing is the fastest scale and shift, and its backward the fastest sums over channels-last maps.
    """

    @staticmethod
    def moments(a: torch.Tensor, *, exact: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """(N, C) mean and variance over space.

        The squares are taken about a first guess of the channel's mean, which saves a pass over memory. The error is
        small against the variance of the batch; where single variances count, `exact` takes them about their own mean.
        """
        flat, space = flattened(a)
        if exact:
            return by_chunks(lambda x: _exact_moments(x, space), flat)
        guess = flat[0].mean(space - 1)
        center = guess.unsqueeze(1) if space == 2 else guess
        distance, square = by_chunks(lambda x: _shifted_sums(x, space, center), flat)
        area = flat.shape[space]
        distance, square = distance.div_(area), square.div_(area)
        return distance + guess, square.addcmul_(distance, distance, value=-1)

    @staticmethod
    def scale_and_shift(a, mu, sigma2, gamma, beta, eps: float) -> torch.Tensor:
        return torch.batch_norm(a, gamma, beta, mu, sigma2, False, 0.0, eps, False)

    @staticmethod
    def gradient_sums(g, a, mu, *, per_sample: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums of g and of g (a - mu): over space, (N, C), if asked per sample; else also over samples, (C,)."""
        if is_channels_last(a) and not per_sample:
            ones = torch.ones_like(mu)
            _, products, total = torch.ops.aten.native_batch_norm_backward(
                g.to(mu.dtype), a.to(mu.dtype), ones, mu, ones, None, None, False, 0.0, [False, True, True]
            )
            return total, products
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


def _shifted_sums(x: torch.Tensor, space: int, center: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    distance = torch.sub(x, center, out=scratch(x))
    return distance.sum(space), _sum_of_squares(distance, space)


def _exact_moments(x: torch.Tensor, space: int) -> tuple[torch.Tensor, torch.Tensor]:
    mean = x.mean(space)
    distance = torch.sub(x, mean.unsqueeze(space), out=scratch(x))
    return mean, _sum_of_squares(distance, space).div_(x.shape[space])


def _sum_of_squares(x: torch.Tensor, space: int) -> torch.Tensor:
    """Of a tensor that is not needed any more. A vector norm is fast over a contiguous axis only."""
    return torch.linalg.vector_norm(x, dim=2).square_() if space == 2 else x.square_().sum(1)


_spaces = threading.local()


def scratch(like: torch.Tensor) -> torch.Tensor:
    """Working space of a tensor's size, the same memory every time: fresh memory would be cold in the cache."""
    size, spaces = like.numel(), vars(_spaces)
    space = spaces.get(str(like.dtype))
    if space is None or len(space) < size:
        space = spaces[str(like.dtype)] = torch.empty(max(size, CHUNK), dtype=like.dtype)
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
    @staticmethod
    def forward(ctx, a, weights, gamma, beta, same_task, eps: float, balanced_affine: bool, passes: Any):
        mean, var = passes.moments(a, exact=same_task is not None)
        mu = weights @ mean
        # The distances of the sample means to the centre that sigma2 is taken about.
        spread = mean - (mu if same_task is None else same_task @ mean)
        second = torch.addcmul(var, spread, spread)
        sigma2 = weights @ second
        out = passes.scale_and_shift(a, mu, sigma2, gamma, beta, eps)
        ctx.save_for_backward(a, weights, gamma, mu, sigma2, same_task)
        ctx.moments = mean, spread, second
        ctx.passes, ctx.balanced_affine, ctx.eps = passes, balanced_affine, eps
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)
        return out, mu, sigma2, mean.clone(), var

    @staticmethod
    def backward(ctx, g, g_mu, g_sigma2, _mean, _var):
        a, weights, gamma, mu, sigma2, same_task = ctx.saved_tensors
        mean, spread, second = ctx.moments
        g = torch.zeros_like(a) if g is None else g
        g = g.contiguous(memory_format=torch.channels_last if is_channels_last(a) else torch.contiguous_format)
        d_beta, d_scale = ctx.passes.gradient_sums(g, a, mu, per_sample=ctx.balanced_affine)
        inverse = (sigma2 + ctx.eps).rsqrt_()
        scale = gamma * inverse
        if ctx.balanced_affine:
            # The statistics feel the plain sums; gamma and beta those in which every task counts the same.
            shares = len(weights) * weights
            d_affine = shares @ d_scale * inverse, shares @ d_beta
            d_beta, d_scale = d_beta.sum(0), d_scale.sum(0)
        else:
            d_affine = d_scale * inverse, d_beta
        d_sigma2 = (d_scale * scale).mul_(inverse.square_()).mul_(-0.5)
        if g_sigma2 is not None:
            d_sigma2 += g_sigma2
        d_mu = -scale * d_beta if g_mu is None else torch.addcmul(g_mu, scale, d_beta, value=-1)
        area = a[0, 0].numel()
        curve = d_sigma2 * (2 / area)
        slope = torch.outer(weights, curve)
        if same_task is None:
            d_mu -= area * curve * (weights @ spread)
            offset = torch.outer(weights, torch.addcmul(d_mu / area, curve, mu, value=-1))
        else:
            pull = slope * spread
            offset = torch.outer(weights, d_mu / area) + pull - same_task @ pull - slope * mean
        d_a = ctx.passes.input_gradient(g, a, scale, slope, offset)
        d_weights = torch.addmv(second @ d_sigma2, mean, d_mu) if ctx.needs_input_grad[1] else None
        return d_a, d_weights, *d_affine, None, None, None, None


def fused(a: torch.Tensor, by: SampleWeights, gamma, beta, eps: float, passes: Any = TensorPasses) -> Normalized:
    if not a.is_contiguous() and not is_channels_last(a):
        a = a.contiguous()
    weights = filled_weights(by, gamma.new_empty(a.shape[0], 0))
    return Normalized(*_WeightedBatchNorm.apply(a, weights, gamma, beta, by.same_task, eps, by.balanced_affine, passes))
