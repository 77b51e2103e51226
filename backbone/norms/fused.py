"""Weighted batch normalization as one autograd function: the numbers of `weighted.reference` at BN's cost.

The activation is touched only in four passes: sample moments, scale and shift, gradient sums, input gradient.
They are tensor operations here (`TensorPasses`) and kernels in `triton_passes`. Everything between them works on
per-sample moments, small (N, C) tensors, so that no switch of the statistics costs a pass. With
d_n = a_n - mean_n, r = (sigma2 + eps)^-1/2 and s = gamma r:

    forward     out = d s + k        k_n = (mean_n - mu) s + beta
    backward    da  = g s + d p + q  p_n = 2 dvar_n / HW,  q_n = dmean_n / HW

where dvar_n = w_n dsigma2 and dmean_n are the gradients of the sample moments through mu and sigma2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from backbone.norms.weighted import Normalized, SampleWeights, compute_dtype, filled_weights

CHUNK = 2**18  # elements; 1 MB of float32, within a core's cache


class TensorPasses:
    """The passes as tensor operations; (N, C, HW) or, for channels-last, (N, HW, C) is the order in memory.

    The forms were chosen by timing on CPUs, separately for the two layouts. Intermediate results are as large as a
    chunk of samples that stays in the cache, so that main memory sees each activation about as often as with BN. Two
    borrowed kernels do much of the work: BN's own for testing is the fastest `x * alpha + beta` per row, and the
    backward of that is the fastest pair of sums over channels-last maps.
    """

    @staticmethod
    def moments(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(N, C) mean and variance over space, in two passes over each chunk."""
        flat, space = flattened(a)
        return by_chunks(lambda x: _moments_of_chunk(x, space), flat)

    @staticmethod
    def scale_and_shift(a, mean, scale, shift) -> torch.Tensor:
        """(a - mean) s + k with (C,) s and (N, C) k."""
        flat, space = flattened(a)
        if space == 2:
            out = rowwise(flat, mean, scale.expand_as(shift), shift)
        else:
            out = torch.addcmul(torch.addcmul(shift, mean, scale, value=-1).unsqueeze(1), flat, scale)
        return unflattened(out, a, space)

    @staticmethod
    def gradient_sums(g, a, mean, mu, *, per_sample: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums of g and of g (a - mu): over space, (N, C), if asked per sample; else also over samples, (C,)."""
        if is_channels_last(a) and not per_sample:
            ones = torch.ones_like(mu)
            g, a = g.to(mu.dtype), a.to(mu.dtype)
            only_sums = [False, True, True]
            _, products, total = torch.ops.aten.native_batch_norm_backward(
                g, a, ones, mu, ones, None, None, False, 0.0, only_sums
            )
            return total, products
        (g, space), (a, _) = flattened(g), flattened(a)
        center = mu.unsqueeze(1) if space == 2 else mu
        total, products = by_chunks(lambda g, a: (g.sum(space), (a - center).mul_(g).sum(space)), g, a)
        return (total, products) if per_sample else (total.sum(0), products.sum(0))

    @staticmethod
    def input_gradient(g, a, mean, scale, slope, offset) -> torch.Tensor:
        """g s + (a - mean) p + q with (C,) s and (N, C) p and q."""
        like = g
        (g, space), (a, _) = flattened(g), flattened(a)
        if space == 2:
            out = rowwise(a, mean, slope, offset).addcmul_(g, scale.unsqueeze(1))
        else:
            shift = torch.addcmul(offset, mean, slope, value=-1)
            out = torch.addcmul(shift.unsqueeze(1), a, slope.unsqueeze(1)).addcmul_(g, scale)
        return unflattened(out, like, space)


def rowwise(flat: torch.Tensor, mean: torch.Tensor, slope: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """(x - mean) slope + offset with one of each per row of an (N, C, HW) activation: BN's kernel for testing."""
    rows = mean.numel()
    out = torch.batch_norm(
        flat.reshape(1, rows, -1),
        slope.reshape(-1),
        offset.reshape(-1),
        mean.reshape(-1),
        mean.new_ones(rows),
        training=False,
        momentum=0.0,
        eps=0.0,
        cudnn_enabled=False,
    )
    return out.view(flat.shape)


def _moments_of_chunk(x: torch.Tensor, space: int) -> tuple[torch.Tensor, torch.Tensor]:
    mean = x.mean(space)
    centered = x - mean.unsqueeze(space)
    squares = torch.linalg.vector_norm(centered, dim=2).square_() if space == 2 else centered.square_().sum(1)
    return mean, squares.div_(x.shape[space])


def by_chunks(function: Callable, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`function` of a few samples at a time, about CHUNK elements; its results joined."""
    samples = max(1, CHUNK // tensors[0][0].numel())
    if samples >= len(tensors[0]):
        return function(*tensors)
    parts = [function(*chunk) for chunk in zip(*(tensor.split(samples) for tensor in tensors), strict=True)]
    return tuple(torch.cat(results) for results in zip(*parts, strict=True))


def is_channels_last(a: torch.Tensor) -> bool:
    return a.dim() == 4 and a.is_contiguous(memory_format=torch.channels_last) and not a.is_contiguous()


def flattened(a: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A view with space in one axis, in the type of the computation, and that axis: 2, or 1 for channels-last."""
    if a.dtype != (dtype := compute_dtype(a)):
        a = a.to(dtype)
    if is_channels_last(a):
        return a.permute(0, 2, 3, 1).flatten(1, 2), 1
    return a.view(a.shape[0], a.shape[1], -1), 2


def unflattened(flat: torch.Tensor, like: torch.Tensor, space: int) -> torch.Tensor:
    if space == 1:
        n, c, h, w = like.shape
        return flat.view(n, h, w, c).permute(0, 3, 1, 2).to(like.dtype)
    return flat.view(like.shape).to(like.dtype)


class _WeightedBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, weights, gamma, beta, same_task, eps: float, balanced_affine: bool, passes: Any):
        mean, var = passes.moments(a)
        mu = weights @ mean
        off = mean - mu
        spread = off if same_task is None else mean - same_task @ mean
        second = torch.addcmul(var, spread, spread)
        sigma2 = weights @ second
        inverse = (sigma2 + eps).rsqrt_()
        scale = gamma * inverse
        out = passes.scale_and_shift(a, mean, scale, torch.addcmul(beta, off, scale))
        ctx.save_for_backward(a, weights, mean, mu, spread, second, inverse, scale, same_task)
        ctx.passes, ctx.balanced_affine = passes, balanced_affine
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)
        return out, mu, sigma2, mean, var

    @staticmethod
    def backward(ctx, g, g_mu, g_sigma2, _mean, _var):
        a, weights, mean, mu, spread, second, inverse, scale, same_task = ctx.saved_tensors
        g = torch.zeros_like(a) if g is None else g
        g = g.contiguous(memory_format=torch.channels_last if is_channels_last(a) else torch.contiguous_format)
        d_beta, d_scale = ctx.passes.gradient_sums(g, a, mean, mu, per_sample=ctx.balanced_affine)
        per_sample = (d_beta, d_scale)
        if ctx.balanced_affine:
            d_beta, d_scale = d_beta.sum(0), d_scale.sum(0)
        d_sigma2 = -0.5 * d_scale * scale * inverse.square()
        d_mu = -scale * d_beta
        if g_mu is not None:
            d_mu = d_mu + g_mu
        if g_sigma2 is not None:
            d_sigma2 = d_sigma2 + g_sigma2
        if ctx.balanced_affine:
            d_beta, d_scale = (len(weights) * weights @ sums for sums in per_sample)
        area = a[0, 0].numel()
        column = weights.unsqueeze(1)
        slope = column * (d_sigma2 * (2 / area))
        pull = slope * spread  # to the sample means, through their distances to the centre of sigma2
        if same_task is None:
            offset = torch.addcmul(pull, column, d_mu / area - pull.sum(0))
        else:
            offset = torch.addcmul(pull - same_task @ pull, column, d_mu / area)
        d_a = ctx.passes.input_gradient(g, a, mean, scale, slope, offset)
        d_weights = None
        if ctx.needs_input_grad[1]:
            if same_task is None:
                d_mu = d_mu - area * pull.sum(0)
            d_weights = mean @ d_mu + second @ d_sigma2
        return d_a, d_weights, d_scale * inverse, d_beta, None, None, None, None


def fused(a: torch.Tensor, by: SampleWeights, gamma, beta, eps: float, passes: Any = TensorPasses) -> Normalized:
    if not a.is_contiguous() and not is_channels_last(a):
        a = a.contiguous()
    weights = filled_weights(by, gamma.new_empty(a.shape[0], 0))
    return Normalized(*_WeightedBatchNorm.apply(a, weights, gamma, beta, by.same_task, eps, by.balanced_affine, passes))
