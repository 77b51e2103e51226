/* The four passes of `fused` over an activation, for CPUs: each reads it once and writes it at most once.

   Compiled twice by `compiled_passes`, with T as float and as double. An activation is N x C rows of S positions, or
   channels-last N x S rows of C. Work is divided by sample and channels, never inside a sum, so the bits do not depend
   on the number of threads. Sums over blocks of positions are of type T, sums of blocks double. */

#include <math.h>

#define CHANNELS 64 /* of a block in channels-last: their running sums stay in the first cache */
#define POSITIONS 64 /* that are added up before the sum moves on to double */
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define BLOCKS(size, block) (((size) + (block) - 1) / (block))

/* The mean of a row or column, and the sum of squared distances to it. */
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

static void column_moments(const T *x, long C, long width, long S, int exact, double *mean, double *squares)
{
    T pivot[CHANNELS], part[CHANNELS], square_part[CHANNELS];
    for (long c = 0; c < width; c++) pivot[c] = x[c];
    for (int pass = 0; pass <= exact; pass++) {
        for (long c = 0; c < width; c++) mean[c] = 0, squares[c] = 0;
        for (long start = 0; start < S; start += POSITIONS) {
            for (long c = 0; c < width; c++) part[c] = 0, square_part[c] = 0;
            for (long s = start; s < MIN(start + POSITIONS, S); s++) {
                const T *row = x + s * C;
#pragma omp simd
                for (long c = 0; c < width; c++) {
                    T distance = row[c] - pivot[c];
                    part[c] += distance;
                    square_part[c] += distance * distance;
                }
            }
            for (long c = 0; c < width; c++) mean[c] += part[c], squares[c] += square_part[c];
        }
        for (long c = 0; c < width; c++) {
            mean[c] /= S;
            squares[c] -= S * mean[c] * mean[c];
            if (squares[c] < 0) squares[c] = 0;
            mean[c] += pivot[c];
            pivot[c] = mean[c]; /* where single variances count, the second pass is about the mean itself */
        }
    }
}

/* Means relative to `guess`, which becomes the mean of sample 0, and sums of squared distances to the own mean. */
void moments(const T *a, T *guess, T *distance, T *squares, double *scratch, long N, long C, long S, int last, int exact,
             int threads)
{
    double *mean = scratch;
    if (last) {
        long blocks = BLOCKS(C, CHANNELS);
#pragma omp parallel for num_threads(threads) schedule(static)
        for (long item = 0; item < N * blocks; item++) {
            long n = item / blocks, first = item % blocks * CHANNELS, width = MIN(CHANNELS, C - first);
            double square[CHANNELS];
            column_moments(a + n * S * C + first, C, width, S, exact, mean + n * C + first, square);
            for (long c = 0; c < width; c++) squares[n * C + first + c] = square[c];
        }
    } else {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (long row = 0; row < N * C; row++) {
            double square;
            row_moments(a + row * S, S, mean + row, &square);
            squares[row] = square;
        }
    }
    for (long c = 0; c < C; c++) guess[c] = mean[c];
    for (long n = 0; n < N; n++)
#pragma omp simd
        for (long c = 0; c < C; c++) distance[n * C + c] = mean[n * C + c] - guess[c];
}

void scale_and_shift(const T *a, const T *scale, const T *shift, T *out, long N, long C, long S, int last, int threads)
{
    if (last) {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (long row = 0; row < N * S; row++)
#pragma omp simd
            for (long c = 0; c < C; c++) out[row * C + c] = a[row * C + c] * scale[c] + shift[c];
    } else {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (long row = 0; row < N * C; row++) {
            const T s = scale[row % C], k = shift[row % C];
#pragma omp simd
            for (long i = row * S; i < (row + 1) * S; i++) out[i] = a[i] * s + k;
        }
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

static void column_sums(const T *g, const T *a, const T *mu, long C, long width, long S, double *total, double *products)
{
    T part[CHANNELS], product[CHANNELS];
    for (long c = 0; c < width; c++) total[c] = 0, products[c] = 0;
    for (long start = 0; start < S; start += POSITIONS) {
        for (long c = 0; c < width; c++) part[c] = 0, product[c] = 0;
        for (long s = start; s < MIN(start + POSITIONS, S); s++) {
#pragma omp simd
            for (long c = 0; c < width; c++) {
                part[c] += g[s * C + c];
                product[c] += g[s * C + c] * (a[s * C + c] - mu[c]);
            }
        }
        for (long c = 0; c < width; c++) total[c] += part[c], products[c] += product[c];
    }
}

/* Sums of g and of g (a - mu) over space, (N, C), and unless `per_sample` over the samples too, (C). */
void gradient_sums(const T *g, const T *a, const T *mu, T *total, T *products, double *scratch, long N, long C, long S,
                   int last, int per_sample, int threads)
{
    double *totals = scratch, *all_products = scratch + N * C;
    long width = last ? CHANNELS : 1, blocks = BLOCKS(C, width);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long item = 0; item < N * blocks; item++) {
        long n = item / blocks, first = item % blocks * width, at = n * C + first;
        if (last)
            column_sums(g + n * S * C + first, a + n * S * C + first, mu + first, C, MIN(width, C - first), S,
                        totals + at, all_products + at);
        else
            row_sums(g + at * S, a + at * S, mu[first], S, totals + at, all_products + at);
    }
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
                    long S, int last, int threads)
{
    if (last) {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (long row = 0; row < N * S; row++) {
            const T *p = slope + row / S * C, *q = offset + row / S * C;
#pragma omp simd
            for (long c = 0; c < C; c++)
                out[row * C + c] = g[row * C + c] * scale[c] + (a[row * C + c] * p[c] + q[c]);
        }
    } else {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (long row = 0; row < N * C; row++) {
            const T s = scale[row % C], p = slope[row], q = offset[row];
#pragma omp simd
            for (long i = row * S; i < (row + 1) * S; i++) out[i] = g[i] * s + (a[i] * p + q);
        }
    }
}

/* `fused.statistics` without tasks: sample moments and weights to mu, sigma2, (sigma2 + eps)^-1/2, scale and shift. */
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

/* `fused.coefficients` without tasks: gradient sums to the gradients of gamma and the weights, and to p and q. */
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
