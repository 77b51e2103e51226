"""Batch normalization with weighted statistics: the operation under AdaB²N and its relatives.

    mu     = sum_n w_n mean_hw(a_n)
    sigma2 = sum_n w_n mean_hw((a_n - c_n)^2)

With w_n = 1/N and c_n = mu this is Batch Normalization (Eq. 2 of the paper). Task weights make it AdaB²N's (Eq. 14).

`reference` is this formula in tensor operations, and `traced` is what `torch.compile` gets. `fused` computes the same
numbers as one autograd function with BN's memory traffic. It touches the activation in four passes: moments of every
sample, scale and shift, gradient sums, input gradient. The passes are tensor operations (`TensorPasses`) or C
(`c_passes.CPasses`). What lies between them works on the small (N, C) moments, so that no option costs a pass. With
s = gamma (sigma2 + eps)^-1/2 and g the gradient of the output:

    forward     out = a s + (beta - mu s)
    backward    da  = g s + a p + q

where p_n = 2 w_n dsigma2 / HW, because sigma2 is quadratic in a, and q_n is all that does not depend on the position:
what comes through mu, and the centre of sigma2.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class SampleWeights(NamedTuple):
    """How much every sample of a batch counts.

    Attributes:
        weights: (N,) non-negative, differentiable; None means 1/N each.
        same_group: (N, N) symmetric matrix that averages over the samples of one's own group. Given, the variance is
            the mixture of within-group variances; None, it is taken about the mixture's mean.
        balanced_affine: The gradients of gamma and beta weigh sample n by N w_n too (TBBN).
        running: (N,) weights for the statistics that update the running ones; None: the normalizing ones.
    """

    weights: Tensor | None = None
    same_group: Tensor | None = None
    balanced_affine: bool = False
    running: Tensor | None = None

    def batch_weights(self, a: Tensor) -> Tensor:
        """Return the weights, or equal ones for the samples of `a`."""
        n = a.shape[0]
        return a.new_full((n,), 1 / n, dtype=compute_dtype(a)) if self.weights is None else self.weights


UNIFORM = SampleWeights()


class Normalized(NamedTuple):
    """The result: the output, the (C,) statistics used, and those for the running update."""

    out: Tensor
    mu: Tensor
    sigma2: Tensor
    running_mu: Tensor  # without gradient if they have weights of their own
    running_sigma2: Tensor


def weighted_batch_norm(
    a: Tensor, by: SampleWeights, gamma: Tensor, beta: Tensor, eps: float, impl: str = "auto"
) -> Normalized:
    """Normalize `a` (N, C, ...) with statistics in which samples count as `by` says, then scale and shift.

    Args:
        impl: "reference", "fused" (tensor operations), "compiled" (C), or "auto": C on CPUs that have a compiler,
            otherwise tensor operations. Under `torch.compile` it is always "traced".
    """
    with no_autocast(a.device):
        if impl == "traced" or torch.compiler.is_compiling():
            return traced(a, by, gamma, beta, eps)
        if impl == "reference":
            return reference(a, by, gamma, beta, eps)
        return fused(a, by, gamma, beta, eps, get_passes(impl, a.device.type))


@cache
def get_passes(impl: str, device_type: str) -> type[TensorPasses]:
    from .c_passes import CPasses, compile_error

    if impl == "compiled" or (impl == "auto" and device_type == "cpu" and compile_error() is None):
        return CPasses
    return TensorPasses


def compute_dtype(a: Tensor) -> torch.dtype:
    """Return the type of statistics: float32 for half-precision activations."""
    return torch.promote_types(a.dtype, torch.float32)


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Keep statistics, weights and penalties out of half precision."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


# --- reference --------------------------------------------------------------------------------------------------------


def reference(a: Tensor, by: SampleWeights, gamma: Tensor, beta: Tensor, eps: float) -> Normalized:
    """Normalize in tensor operations, differentiable in everything, also through mu and sigma2."""
    dtype = a.dtype
    a = a.to(compute_dtype(a))
    space = (1,) * (a.dim() - 2)
    # Sample means (N, C) are relative to a (C,) point near them: differences of large means would be lost to rounding.
    flat = a.reshape(a.shape[0], a.shape[1], -1)
    origin = flat[0].mean(1).detach()
    flat = flat - origin.unsqueeze(1)
    mean = flat.mean(2)
    var = (flat - mean.unsqueeze(2)).square().mean(2)
    weights = by.batch_weights(a)
    running = mu, sigma2 = weighted_statistics(origin, mean, var, weights, by.same_group)
    if by.running is not None:
        running = weighted_statistics(origin, mean.detach(), var.detach(), by.running, None)
    unit = (a - mu.view(1, -1, *space)) * torch.rsqrt(sigma2 + eps).view(1, -1, *space)
    if by.balanced_affine:
        out = unit * gamma.detach().view(1, -1, *space) + beta.detach().view(1, -1, *space)
        # Zero in value; its gradient to gamma and beta weighs sample n by N w_n.
        d_gamma, d_beta = ((p - p.detach()).view(1, -1, *space) for p in (gamma, beta))
        balance = (len(weights) * weights.detach()).view(-1, 1, *space)
        out = out + (unit.detach() * d_gamma + d_beta) * balance
    else:
        out = unit * gamma.view(1, -1, *space) + beta.view(1, -1, *space)
    return Normalized(out.to(dtype), mu, sigma2, *running)


def weighted_statistics(
    origin: Tensor, mean: Tensor, var: Tensor, weights: Tensor, same_group: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Turn (N, C) sample moments, the means relative to `origin`, into (C,) statistics.

    mean_hw((a_n - c)^2) is var_n + (mean_n - c)^2. Weights that sum to less than 1 pull mu towards 0.
    """
    relative_mu = weights @ mean - origin * (1 - weights.sum())
    center = relative_mu if same_group is None else same_group @ mean
    return origin + relative_mu, weights @ (var + (mean - center).square())


# --- for torch.compile ------------------------------------------------------------------------------------------------


def traced(a: Tensor, by: SampleWeights, gamma: Tensor, beta: Tensor, eps: float) -> Normalized:
    """Normalize in operations of which a compiler makes few kernels: the gradient is written out."""
    options = by.same_group, by.running, by.balanced_affine, eps
    out, mu, sigma2, *running = _TracedBatchNorm.apply(a, by.batch_weights(a), gamma, beta, *options)
    return Normalized(out, mu, sigma2, *(running or (mu, sigma2)))


class _TracedBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, weights: Tensor, gamma: Tensor, beta: Tensor, *options: Any) -> tuple[Tensor, ...]:
        same_group, running, balanced_affine, eps = options
        flat = _flatten_space(a)
        var, mean = torch.var_mean(flat, 2, correction=0)  # of every sample, (N, C)

        def weigh(weights: Tensor, same_group: Tensor | None) -> tuple[Tensor, Tensor]:
            mu = (weights.unsqueeze(1) * mean).sum(0)
            spread = mean - (mu if same_group is None else same_group @ mean)
            return mu, (weights.unsqueeze(1) * (var + spread.square())).sum(0)

        mu, sigma2 = weigh(weights, same_group)
        scale = gamma * torch.rsqrt(sigma2 + eps)
        out = (flat - mu.unsqueeze(1)) * scale.unsqueeze(1) + beta.unsqueeze(1)
        ctx.save_for_backward(a, weights, gamma, mean, var, mu, sigma2, *([] if same_group is None else [same_group]))
        ctx.balanced_affine, ctx.eps = balanced_affine, eps
        out = out.view(a.shape).to(a.dtype)
        if running is None:
            return out, mu, sigma2
        others = weigh(running, None)
        ctx.mark_non_differentiable(*others)
        return out, mu, sigma2, *others

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_mu: Tensor, g_sigma2: Tensor, *_running: Tensor) -> tuple[Tensor | None, ...]:
        a, weights, gamma, mean, var, mu, sigma2, *same_group = ctx.saved_tensors
        flat, flat_g = _flatten_space(a), _flatten_space(g)
        area, column = flat.shape[2], weights.unsqueeze(1)
        inverse = torch.rsqrt(sigma2 + ctx.eps)
        # Sums over space, (N, C): of g, and of g (a - mu) / sigma.
        sums = flat_g.sum(2)
        products = (flat_g * (flat - mu.unsqueeze(1))).sum(2) * inverse
        d_beta, d_gamma = sums.sum(0), products.sum(0)
        d_sigma2 = g_sigma2 - 0.5 * gamma * d_gamma * inverse.square()
        d_mu = g_mu - gamma * inverse * d_beta
        if ctx.balanced_affine:  # the statistics receive the plain sums; gamma and beta those by weight
            d_beta, d_gamma = ((len(a) * column * part).sum(0) for part in (sums, products))
        if same_group:
            spread = mean - same_group[0] @ mean
            pull = 2 * column * d_sigma2 * spread
            d_mean = column * d_mu + pull - same_group[0] @ pull
        else:
            spread = mean - mu
            d_mu = d_mu - 2 * d_sigma2 * mu * (1 - weights.sum())  # what the weights lack to 1 moves the centre
            d_mean = column * (d_mu + 2 * d_sigma2 * spread)
        d_weights = (mean * d_mu + d_sigma2 * (var + spread.square())).sum(1)
        slope = 2 / area * column * d_sigma2
        through_statistics = slope.unsqueeze(2) * (flat - mean.unsqueeze(2)) + (d_mean / area).unsqueeze(2)
        d_a = (flat_g * (gamma * inverse).unsqueeze(1) + through_statistics).view(a.shape).to(a.dtype)
        return d_a, d_weights, d_gamma, d_beta, None, None, None, None


# --- one autograd function --------------------------------------------------------------------------------------------


class Moments(NamedTuple):
    """The moments of every sample, and how much it counts."""

    guess: Tensor  # (C,) near the channels' means
    distance: Tensor  # (N, C) of the sample means to the guess
    squares: Tensor  # (N, C) sums over space of the squared distances to the sample means
    weights: Tensor  # (N,)
    same_group: Tensor | None
    area: int  # positions of a map

    def weigh(self, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mu, the area times what sigma2 is the weighted mean of, and the distances of means to its centre."""
        # Relative to the guess. Weights that sum to less than 1 pull the mean towards 0.
        center = torch.mv(self.distance.t(), weights).addcmul_(self.guess, 1 - weights.sum(), value=-1)
        spread = self.distance - (center if self.same_group is None else self.same_group @ self.distance)
        return self.guess + center, torch.addcmul(self.squares, spread, spread, value=self.area), spread


class Statistics(NamedTuple):
    """(C,) tensors."""

    mu: Tensor
    sigma2: Tensor
    inverse: Tensor  # (sigma2 + eps)^-1/2
    scale: Tensor  # gamma times that
    shift: Tensor  # beta - mu scale


class Gradients(NamedTuple):
    """What the backward pass knows of the loss: (C,) sums of g and of g (a - mu), and its derivatives, if any."""

    total: Tensor
    products: Tensor
    mu: Tensor | None
    sigma2: Tensor | None


class Coefficients(NamedTuple):
    d_gamma: Tensor
    slope: Tensor  # (N, C) p of the input's gradient g s + a p + q
    offset: Tensor  # (N, C) q
    d_weights: Tensor


def fused(
    a: Tensor, by: SampleWeights, gamma: Tensor, beta: Tensor, eps: float, passes: type[TensorPasses]
) -> Normalized:
    weights = by.batch_weights(a)
    for tensor in (gamma, beta, weights):
        if tensor.dtype != compute_dtype(a):
            raise TypeError(f"activations of {a.dtype} need scale, shift and weights of {compute_dtype(a)}")
    out, mu, sigma2, *running = _WeightedBatchNorm.apply(a.contiguous(), weights, gamma, beta, by, eps, passes)
    return Normalized(out, mu, sigma2, *(running or (mu, sigma2)))


class _WeightedBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, weights: Tensor, gamma: Tensor, beta: Tensor, *options: Any) -> tuple[Tensor, ...]:
        by, eps, passes = options
        guess, distance, squares = passes.moments(a, exact=by.same_group is not None)
        area = a.numel() // (a.shape[0] * a.shape[1])
        moments = Moments(guess, distance, squares, weights.contiguous(), by.same_group, area)
        stats = passes.statistics(moments, gamma, beta, eps)
        out = passes.scale_and_shift(a, stats.scale, stats.shift)
        # What is kept must not be an output, or the two would keep each other alive.
        mu, sigma2 = stats.mu.detach(), stats.sigma2.detach()
        ctx.save_for_backward(a)
        ctx.moments, ctx.stats, ctx.passes, ctx.balanced_affine = moments, stats, passes, by.balanced_affine
        ctx.set_materialize_grads(False)
        if by.running is None:
            return out, mu, sigma2
        running_mu, second, _ = moments._replace(same_group=None).weigh(by.running)
        running = running_mu, torch.mv(second.t(), by.running) / area
        ctx.mark_non_differentiable(*running)
        return out, mu, sigma2, *running

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, g: Tensor | None, g_mu: Tensor | None, g_sigma2: Tensor | None, *_running: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        (a,), moments, stats = ctx.saved_tensors, ctx.moments, ctx.stats
        g = torch.zeros_like(a) if g is None else g.contiguous()
        sums = affine_sums = ctx.passes.gradient_sums(g, a, stats.mu, per_sample=ctx.balanced_affine)
        if ctx.balanced_affine:
            # The statistics receive the plain sums; gamma and beta those in which every group counts the same.
            affine_sums = tuple(len(a) * moments.weights @ per_sample for per_sample in sums)
            sums = tuple(per_sample.sum(0) for per_sample in sums)
        parts = ctx.passes.coefficients(Gradients(sums[0], sums[1], g_mu, g_sigma2), moments, stats)
        d_a = ctx.passes.input_gradient(g, a, stats.scale, parts.slope, parts.offset)
        d_gamma = affine_sums[1] * stats.inverse if ctx.balanced_affine else parts.d_gamma
        return d_a, parts.d_weights, d_gamma, affine_sums[0], None, None, None


# --- the passes as tensor operations ----------------------------------------------------------------------------------


class TensorPasses:
    """The passes over the activation as tensor operations, in forms that were chosen by timing on CPUs.

    With small maps a layer costs what its calls cost, so factors are passed along as arguments of other operations.
    """

    name = "fused"

    @staticmethod
    def moments(a: Tensor, *, exact: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return guess, distance and squares of `Moments`.

        Everything is taken about the guess, so that a large mean costs no precision, and the squares are corrected
        afterwards, which saves a pass over memory. Their error is small against the variance of the batch; where single
        variances count, `exact` takes them about their own means.
        """
        flat = _flatten_space(a)
        guess = flat[0].mean(1)
        shifted = flat - guess.unsqueeze(1)
        distance = shifted.mean(2)
        if exact:
            shifted.sub_(distance.unsqueeze(2))
        squares = torch.linalg.vector_norm(shifted, dim=2).square_()
        return guess, distance, squares if exact else squares.addcmul_(distance, distance, value=-flat.shape[2])

    @staticmethod
    def statistics(moments: Moments, gamma: Tensor, beta: Tensor, eps: float) -> Statistics:
        mu, second, _ = moments.weigh(moments.weights)
        sigma2 = torch.addmv(mu, second.t(), moments.weights, beta=0, alpha=1 / moments.area)
        inverse = (sigma2 + eps).rsqrt_()
        scale = gamma * inverse
        return Statistics(mu, sigma2, inverse, scale, torch.addcmul(beta, mu, scale, value=-1))

    @staticmethod
    def coefficients(gradients: Gradients, moments: Moments, stats: Statistics) -> Coefficients:
        guess, distance, _, weights, same_group, area = moments
        total, products, g_mu, g_sigma2 = gradients
        zeros = torch.zeros_like(stats.mu)
        d_gamma = products * stats.inverse
        through_scale = d_gamma * stats.scale
        d_sigma2 = torch.addcmul(zeros if g_sigma2 is None else g_sigma2, through_scale, stats.inverse, value=-0.5)
        d_mu = torch.addcmul(zeros if g_mu is None else g_mu, stats.scale, total, value=-1)
        _, second, spread = moments.weigh(weights)
        slope = torch.addr(spread, weights, d_sigma2, beta=0, alpha=2 / area)
        if same_group is None:
            # The weighted mean of the spread is what the weights lack to 1, times mu.
            d_mu.addcmul_(d_sigma2, stats.mu * (1 - weights.sum()), value=-2)
            level = torch.addcmul(d_mu, d_sigma2, stats.mu, value=-2)
            offset = torch.addr(spread, weights, level, beta=0, alpha=1 / area)
        else:
            pull = slope * spread
            offset = torch.addr(pull - same_group @ pull - slope * (distance + guess), weights, d_mu, alpha=1 / area)
        d_weights = torch.mv(distance, d_mu).addmv_(second, d_sigma2, alpha=1 / area).add_(torch.dot(guess, d_mu))
        return Coefficients(d_gamma, slope, offset, d_weights)

    @staticmethod
    def scale_and_shift(a: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """BN's evaluation kernel is the fastest way to do this."""
        zeros, ones = torch.zeros_like(scale), torch.ones_like(scale)
        return torch.batch_norm(a, scale, shift, zeros, ones, False, 0.0, 0.0, False)

    @staticmethod
    def gradient_sums(g: Tensor, a: Tensor, mu: Tensor, *, per_sample: bool) -> tuple[Tensor, Tensor]:
        """Return sums of g and of g (a - mu): over space, (N, C), if asked per sample; else also over samples, (C,)."""
        g, a = _flatten_space(g), _flatten_space(a)
        total, products = g.sum(2), (a - mu.unsqueeze(1)).mul_(g).sum(2)
        return (total, products) if per_sample else (total.sum(0), products.sum(0))

    @staticmethod
    def input_gradient(g: Tensor, a: Tensor, scale: Tensor, slope: Tensor, offset: Tensor) -> Tensor:
        """Return g s + a p + q with (C,) s and (N, C) p and q."""
        dtype, space = g.dtype, (1,) * (g.dim() - 2)
        g, a = g.to(scale.dtype), a.to(scale.dtype)
        slope, offset = slope.view(*slope.shape, *space), offset.view(*offset.shape, *space)
        return (a * slope).add_(offset).addcmul_(g, scale.view(-1, *space)).to(dtype)


def _flatten_space(a: Tensor) -> Tensor:
    """Return a (N, C, positions) view in the type of the computation."""
    a = a.to(compute_dtype(a))
    return a.view(a.shape[0], a.shape[1], -1)
