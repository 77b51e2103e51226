/* The four passes of weighted.py over an activation of N x C rows of S positions, for CPUs: each reads it once and
   writes it at most once.

   c_passes.py compiles this file twice, with T as float and as double. Work is divided by sample and channel, never
   inside a sum, so the bits do not depend on the number of threads. Sums over blocks of positions are of type T, sums
   of blocks are double. */

#include <math.h>

#define POSITIONS 64 /* that are added up before the sum moves on to double */
#define MIN(a, b) ((a) < (b) ? (a) : (b))

/* The mean of a row, and the sum of squared distances to it. */
static void row_moments(const T *x, long S, double *mean, double *squares)
{
    const T pivot = x[0];
    double total = 0, square = 0;
    for (long start = 0; start < S; start += POSITIONS) {
        T part = 0;
        long end = MIN(start + POSITIONS, S);
#pragma omp simd reduction(+ : part)
        for (long s = start; s < end; s++) part += x[s] - pivot;
        total += part;
    }
    total /= S;
    const T center = total;
    for (long start = 0; start < S; start += POSITIONS) {
        T part = 0;
        long end = MIN(start + POSITIONS, S);
#pragma omp simd reduction(+ : part)
        for (long s = start; s < end; s++) part += (x[s] - pivot - center) * (x[s] - pivot - center);
        square += part;
    }
    *mean = pivot + total;
    *squares = square;
}

/* Means relative to `guess`, which becomes the mean of sample 0, and sums of squared distances to the own mean. */
void moments(const T *a, T *guess, T *distance, T *squares, double *scratch, long N, long C, long S, long threads)
{
    double *mean = scratch;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long row = 0; row < N * C; row++) {
        double square;
        row_moments(a + row * S, S, mean + row, &square);
        squares[row] = square;
    }
    for (long c = 0; c < C; c++) guess[c] = mean[c];
    for (long n = 0; n < N; n++)
#pragma omp simd
        for (long c = 0; c < C; c++) distance[n * C + c] = mean[n * C + c] - guess[c];
}

void scale_and_shift(const T *a, const T *scale, const T *shift, T *out, long N, long C, long S, long threads)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long row = 0; row < N * C; row++) {
        const T s = scale[row % C], k = shift[row % C];
#pragma omp simd
        for (long i = row * S; i < (row + 1) * S; i++) out[i] = a[i] * s + k;
    }
}

static void row_sums(const T *g, const T *a, T mu, long S, double *total, double *products)
{
    *total = 0, *products = 0;
    for (long start = 0; start < S; start += POSITIONS) {
        T part = 0, product = 0;
        long end = MIN(start + POSITIONS, S);
#pragma omp simd reduction(+ : part, product)
        for (long s = start; s < end; s++) part += g[s], product += g[s] * (a[s] - mu);
        *total += part, *products += product;
    }
}

/* Sums of g and of g (a - mu) over space, (N, C), and unless `per_sample` over the samples too, (C). */
void gradient_sums(const T *g, const T *a, const T *mu, T *total, T *products, double *scratch, long N, long C, long S,
                   long per_sample, long threads)
{
    double *totals = scratch, *all_products = scratch + N * C;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long row = 0; row < N * C; row++)
        row_sums(g + row * S, a + row * S, mu[row % C], S, totals + row, all_products + row);
    if (!per_sample) {
        for (long n = 1; n < N; n++)
#pragma omp simd
            for (long c = 0; c < C; c++) totals[c] += totals[n * C + c], all_products[c] += all_products[n * C + c];
        N = 1;
    }
    for (long i = 0; i < N * C; i++) total[i] = totals[i], products[i] = all_products[i];
}

/* g s + a p + q with (C) s and (N, C) p and q. */
void input_gradient(const T *g, const T *a, const T *scale, const T *slope, const T *offset, T *out, long N, long C,
                    long S, long threads)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long row = 0; row < N * C; row++) {
        const T s = scale[row % C], p = slope[row], q = offset[row];
#pragma omp simd
        for (long i = row * S; i < (row + 1) * S; i++) out[i] = g[i] * s + (a[i] * p + q);
    }
}

/* `weighted.statistics` without groups: sample moments and weights to mu, sigma2, (sigma2 + eps)^-1/2, scale and shift. */
void statistics(const T *guess, const T *distance, const T *squares, const T *weights, const T *gamma, const T *beta,
                T *mu, T *sigma2, T *inverse, T *scale, T *shift, double *scratch, long N, long C, double area, double eps)
{
    double *mean = scratch, *variance = scratch + C, sum = 0;
    for (long n = 0; n < N; n++) sum += weights[n];
    for (long c = 0; c < C; c++) mean[c] = -guess[c] * (1 - sum), variance[c] = 0;
    for (long n = 0; n < N; n++)
#pragma omp simd
        for (long c = 0; c < C; c++) mean[c] += weights[n] * (double)distance[n * C + c];
    for (long n = 0; n < N; n++)
#pragma omp simd
        for (long c = 0; c < C; c++) {
            double spread = distance[n * C + c] - mean[c];
            variance[c] += weights[n] * (squares[n * C + c] / area + spread * spread);
        }
    for (long c = 0; c < C; c++) {
        mu[c] = guess[c] + mean[c], sigma2[c] = variance[c];
        inverse[c] = 1 / sqrt(variance[c] + eps);
        scale[c] = gamma[c] * inverse[c];
        shift[c] = beta[c] - (guess[c] + mean[c]) * scale[c];
    }
}

/* `weighted.coefficients` without groups: gradient sums to the gradients of gamma and the weights, and to p and q. */
void coefficients(const T *d_scale, const T *d_beta, const T *g_mu, const T *g_sigma2, const T *guess, const T *distance,
                  const T *squares, const T *weights, const T *mu, const T *inverse, const T *scale, T *d_gamma,
                  T *slope, T *offset, T *d_weights, double *scratch, long N, long C, double area)
{
    double *d_mu = scratch, *d_sigma2 = scratch + C, *level = scratch + 2 * C, missing = 1;
    for (long n = 0; n < N; n++) missing -= weights[n];
#pragma omp simd
    for (long c = 0; c < C; c++) {
        d_gamma[c] = d_scale[c] * inverse[c];
        d_sigma2[c] = -0.5 * d_gamma[c] * scale[c] * inverse[c] + (g_sigma2 ? g_sigma2[c] : 0);
        d_mu[c] = -scale[c] * d_beta[c] + (g_mu ? g_mu[c] : 0) - 2 * d_sigma2[c] * missing * mu[c];
        level[c] = d_mu[c] - 2 * d_sigma2[c] * mu[c];
    }
    for (long n = 0; n < N; n++) {
        double of_mean = 0, of_square = 0, weight = weights[n] / area;
#pragma omp simd reduction(+ : of_mean, of_square)
        for (long c = 0; c < C; c++) {
            double spread = distance[n * C + c] - (mu[c] - guess[c]);
            slope[n * C + c] = 2 * weight * d_sigma2[c];
            offset[n * C + c] = weight * level[c];
            of_mean += (guess[c] + (double)distance[n * C + c]) * d_mu[c];
            of_square += (squares[n * C + c] / area + spread * spread) * d_sigma2[c];
        }
        d_weights[n] = of_mean + of_square;
    }
}
