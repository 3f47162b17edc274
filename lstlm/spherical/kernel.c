/* What a step does between its products, compiled: rows of large tables, and the LowRank step of touched_rows.py for
 * one target an example. native.py and compiled.py call it.
 *
 * The letters and the order of the step are those of touched_rows.py, which is the reference; the products are those of
 * the BLAS library that PyTorch has loaded. Matrices are row-major; a tensor (m,d) of a minibatch is kept as (d,m),
 * examples as columns. The file includes itself once for each type of number.
 */
#ifndef REAL

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_THIS_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_THIS_PROCESSOR
#endif

#if defined(__GNUC__)
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)0)
#endif

enum { AHEAD = 4, LINE = 64, LANES = 16 }; /* rows to fetch in advance; bytes of a cache line; sums side by side */

enum { IDENTITY, TANH, RELU };

/* tanh to 1.4 units in the last place: a polynomial near 0, else 1 − 2/(e²ˣ + 1) with e²ˣ = 2ⁿ · a polynomial. */
static inline float tanh_float32(float x)
{
    const float z = x * x, size = fabsf(x) < 9.1f ? fabsf(x) : 9.1f; /* beyond it tanh is 1 */
    float near = 0.021003641f + z * -0.006104948f;
    near = -0.333333284f + z * (0.133327827f + z * (-0.0538524985f + z * near));
    const float power = size * 2.88539008f; /* 2/ln 2 */
    const float n = (power + 12582912.0f) - 12582912.0f, rest = power - n; /* n: to the nearest whole number */
    float curve = 0.00961805694f + rest * (0.00133908668f + rest * 0.000154614478f);
    curve = 1 + rest * (0.693147182f + rest * (0.240226507f + rest * (0.0555035695f + rest * curve)));
    const union {
        int32_t bits;
        float value;
    } two_to_n = {((int32_t)n + 127) << 23};
    const float far = 1 - 2 / (curve * two_to_n.value + 1);
    const float result = size < 0.625f ? x + x * (z * near) : copysignf(far, x);
    return x == x ? result : x; /* what is not a number stays so */
}

static inline double tanh_float64(double x) { return tanh(x); }

/* The place of the first of ids (n,) that is not below `rows`; −1 where all are. A negative id is a large one, unsigned. */
int64_t outside(const int64_t *ids, int64_t n, int64_t rows)
{
    for (int64_t i = 0; i < n; i++)
        if ((uint64_t)ids[i] >= (uint64_t)rows) return i;
    return -1;
}

#define JOIN_(name, type) name##_##type
#define JOIN(name, type) JOIN_(name, type)
#define NAME(name) JOIN(name, TYPE)

#define REAL float
#define TYPE float32
#include "kernel.c"
#undef REAL
#undef TYPE
#define REAL double
#define TYPE float64
#include "kernel.c"

#else

/* Ask for a row of a table (…,size) that will be needed soon. */
static void NAME(prefetch)(const REAL *row, int64_t size)
{
    for (int64_t byte = 0; byte < size * (int64_t)sizeof(REAL); byte += LINE) PREFETCH((const char *)row + byte);
}

/* The sum of x (n,), in float64. */
static double NAME(total)(const REAL *x, int64_t n)
{
    double lanes[LANES] = {0}, total = 0; /* side by side, so that the sum is one of vectors */
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int64_t lane = 0; lane < LANES; lane++) lanes[lane] += x[i + lane];
    for (; i < n; i++) total += x[i];
    for (int64_t lane = 0; lane < LANES; lane++) total += lanes[lane];
    return total;
}

/* out (bags,size) ← scale · the sum of the rows ids[i·each], … ids[i·each + each − 1] of table. */
FOR_THIS_PROCESSOR void NAME(sum_rows)(const REAL *table, int64_t size, const int64_t *ids, int64_t bags, int64_t each,
                                       double scale, REAL *out)
{
    const REAL factor = (REAL)scale;
    for (int64_t i = 0; i < bags; i++)
        for (int64_t k = i * each; k < (i + 1) * each; k++) {
            if (k + AHEAD < bags * each) NAME(prefetch)(table + ids[k + AHEAD] * size, size);
            const REAL *row = table + ids[k] * size;
            REAL *sum = out + i * size;
            if (k == i * each)
                for (int64_t j = 0; j < size; j++) sum[j] = factor * row[j];
            else
                for (int64_t j = 0; j < size; j++) sum[j] += factor * row[j];
        }
}

/* Row ids[k] of table += scale · change[k / each], k < n one after the other: a repeated id counts every time. */
FOR_THIS_PROCESSOR void NAME(add_rows)(REAL *table, int64_t size, const int64_t *ids, int64_t n, const REAL *change,
                                       int64_t each, double scale)
{
    const REAL factor = (REAL)scale;
    for (int64_t k = 0; k < n; k++) {
        if (k + AHEAD < n) NAME(prefetch)(table + ids[k + AHEAD] * size, size);
        REAL *row = table + ids[k] * size;
        const REAL *more = change + k / each * size;
        for (int64_t j = 0; j < size; j++) row[j] += factor * more[j];
    }
}

/* One step of row-wise Adagrad: with g the sum of scale · change[k / each] over all k < n where ids[k] is the same word,
 * squares[word] += mean g², then row −= rate · g / (√squares[word] + epsilon).
 *
 * links (2n + slots,) is scratch, slots a power of 2 above n; sums (2,size) too.
 */
FOR_THIS_PROCESSOR void NAME(adagrad_rows)(REAL *table, int64_t size, REAL *squares, const int64_t *ids, int64_t n,
                                           const REAL *change, int64_t each, double scale, double rate, double epsilon,
                                           int64_t *links, int64_t slots, REAL *sums)
{
    enum { NONE = -1 };
    int64_t *next = links, *earlier = links + n, *last = links + 2 * n; /* of the same word; last: by hash */
    const uint64_t mask = (uint64_t)slots - 1;
    REAL *sum = sums, *its_squares = sums + size;
    for (int64_t slot = 0; slot < slots; slot++) last[slot] = NONE;
    for (int64_t k = 0; k < n; k++) {
        uint64_t slot = ((uint64_t)ids[k] * 0x9E3779B97F4A7C15u >> 32) & mask;
        while (last[slot] != NONE && ids[last[slot]] != ids[k]) slot = (slot + 1) & mask;
        next[k] = NONE;
        earlier[k] = last[slot];
        if (earlier[k] != NONE) next[earlier[k]] = k;
        last[slot] = k;
    }
    for (int64_t k = 0; k < n; k++) {
        if (k + AHEAD < n) NAME(prefetch)(table + ids[k + AHEAD] * size, size);
        if (earlier[k] != NONE) continue;
        memset(sum, 0, size * sizeof(REAL));
        for (int64_t same = k; same != NONE; same = next[same])
            for (int64_t j = 0; j < size; j++) sum[j] += change[same / each * size + j];
        for (int64_t j = 0; j < size; j++) its_squares[j] = sum[j] * sum[j];
        squares[ids[k]] += (REAL)(scale * scale * NAME(total)(its_squares, size) / size);
        const REAL factor = (REAL)(-rate * scale / (sqrt(squares[ids[k]]) + epsilon));
        for (int64_t j = 0; j < size; j++) table[ids[k] * size + j] += factor * sum[j];
    }
}

/* 64-bit integers, of which a BLAS of 32-bit integers reads the lower half. */
typedef void NAME(Gemm)(const char *, const char *, const int64_t *, const int64_t *, const int64_t *, const REAL *,
                        const REAL *, const int64_t *, const REAL *, const int64_t *, const REAL *, REAL *,
                        const int64_t *);

/* C (M,N) ← alpha · A B + beta · C, where `transposed` names which of A and B are stored transposed. */
static void NAME(product)(NAME(Gemm) *gemm, const char transposed[2], int64_t M, int64_t N, int64_t K, double alpha,
                          const REAL *A, int64_t lda, const REAL *B, int64_t ldb, double beta, REAL *C, int64_t ldc)
{
    const REAL a = (REAL)alpha, b = (REAL)beta;
    gemm(transposed + 1, transposed, &N, &M, &K, &a, B, &ldb, A, &lda, &b, C, &ldc); /* BLAS sees all transposed */
}

/* The activations of hidden layers, by number. */
static REAL NAME(activated)(int64_t activation, REAL x)
{
    if (activation == RELU) return x > 0 || x != x ? x : 0;
    return activation == TANH ? NAME(tanh)(x) : x;
}

/* The derivative of an activation, given its result. */
static REAL NAME(slope)(int64_t activation, REAL y)
{
    if (activation == RELU) return y > 0;
    return activation == TANH ? 1 - y * y : 1;
}

/* Y (units,m) ← f(A X + a 1ᵀ) for A (units,inputs), and X (inputs,m), or stored as (m,inputs) where `by_rows`. */
FOR_THIS_PROCESSOR void NAME(layer_forward)(NAME(Gemm) *gemm, int64_t activation, int64_t units, int64_t inputs,
                                            int64_t m, const REAL *A, const REAL *a, const REAL *X, int64_t by_rows,
                                            REAL *Y)
{
    NAME(product)(gemm, by_rows ? "NT" : "NN", units, m, inputs, 1, A, inputs, X, by_rows ? inputs : m, 0, Y, m);
    for (int64_t j = 0; j < units; j++)
        switch (activation) { /* outside the loop over examples, which is then one of vectors */
        case TANH: for (int64_t i = 0; i < m; i++) Y[j * m + i] = NAME(activated)(TANH, Y[j * m + i] + a[j]); break;
        case RELU: for (int64_t i = 0; i < m; i++) Y[j * m + i] = NAME(activated)(RELU, Y[j * m + i] + a[j]); break;
        default: for (int64_t i = 0; i < m; i++) Y[j * m + i] += a[j];
        }
}

/* Given the gradient dY of Y = f(Z), Z = A X + a 1ᵀ: those of Z, A, a and, unless NULL, of X, stored as X is. */
FOR_THIS_PROCESSOR void NAME(layer_backward)(NAME(Gemm) *gemm, int64_t activation, int64_t units, int64_t inputs,
                                             int64_t m, const REAL *A, const REAL *X, int64_t by_rows, const REAL *Y,
                                             const REAL *dY, REAL *dZ, REAL *dA, REAL *da, REAL *dX)
{
    for (int64_t j = 0; j < units; j++) {
        const REAL *y = Y + j * m, *dy = dY + j * m;
        REAL *dz = dZ + j * m;
        switch (activation) {
        case TANH: for (int64_t i = 0; i < m; i++) dz[i] = dy[i] * NAME(slope)(TANH, y[i]); break;
        case RELU: for (int64_t i = 0; i < m; i++) dz[i] = dy[i] * NAME(slope)(RELU, y[i]); break;
        default: for (int64_t i = 0; i < m; i++) dz[i] = dy[i];
        }
        da[j] = (REAL)NAME(total)(dz, m);
    }
    NAME(product)(gemm, by_rows ? "NN" : "NT", units, inputs, m, 1, dZ, m, X, by_rows ? inputs : m, 0, dA, inputs);
    if (dX && by_rows) NAME(product)(gemm, "TN", m, inputs, units, 1, dZ, m, A, inputs, 0, dX, inputs);
    if (dX && !by_rows) NAME(product)(gemm, "TN", inputs, m, units, 1, A, inputs, dZ, m, 0, dX, m);
}

/* A step, as lstlm/spherical/compiled.py fills it in. */
typedef struct {
    NAME(Gemm) *gemm;
    int64_t d, m, width;            /* width: how far apart the rows of table, base and J are */
    REAL *table, *base, *deviation; /* the state: stack.py */
    const REAL *V;                  /* (D,d) */
    const int64_t *ids;             /* (m,) */
    const REAL *HT, *p;             /* (d,m); p (m,) or NULL for ones */
    const REAL *rows;               /* (m,d): V[ids], brought to the current frame */
    REAL *products;                 /* (5d+4,m): X, HQ, Hω, Hw̄, HU⁻¹, HUᵀ, and the steps of Q, ω, w̄ */
    double *outputs;                /* (3,m): q, s, o */
    const REAL *dq, *ds, *dout;     /* (m,); ds is NULL where the loss ignores s */
    REAL *grad_H;                   /* (d,m) */
    REAL *A, *N, *C;                /* (m,m) */
    REAL *J;                        /* (m,width) */
    REAL *change;                   /* (m,d): of the rows of V */
    double eta, p_norm2;
} NAME(Step);

/* What the table says of H, while the rows of V that come next are on their way from memory. */
void NAME(read)(const NAME(Step) *s)
{
    const int64_t d = s->d, m = s->m;
    for (int64_t i = 0; i < m; i++) NAME(prefetch)(s->V + s->ids[i] * d, d);
    NAME(product)(s->gemm, "NN", 3 * d + 2, m, d, 1, s->table, s->width, s->HT, m, 0, s->products + d * m, m);
}

/* q = diag(H Q Hᵀ), s = H w̄ and o = diag(H Xᵀ) for X = rows U + p ωᵀ, which are added up in float64. */
FOR_THIS_PROCESSOR void NAME(outputs)(const NAME(Step) *s)
{
    const int64_t d = s->d, m = s->m;
    const REAL *HT = s->HT, *omega = s->table + d * s->width, *U = s->table + (2 * d + 2) * s->width;
    REAL *X = s->products, *HQ = X + d * m, *Hw_bar = HQ + (d + 1) * m;
    double *q = s->outputs, *sum = q + m, *o = sum + m;

    for (int64_t j = 0; j < d; j++)
        for (int64_t i = 0; i < m; i++) X[j * m + i] = s->p ? omega[j] * s->p[i] : omega[j];
    NAME(product)(s->gemm, "TT", d, m, d, 1, U, s->width, s->rows, d, 1, X, m);
    memset(s->outputs, 0, 3 * m * sizeof(double));
    for (int64_t j = 0; j < d; j++)
        for (int64_t i = 0; i < m; i++) {
            const double h = HT[j * m + i];
            q[i] += h * HQ[j * m + i];
            o[i] += h * X[j * m + i];
        }
    for (int64_t i = 0; i < m; i++) sum[i] = Hw_bar[i];
}

/* X ← YW + dq ∘ HQ + ds ⊗ w̄ and ∇H = X + dq ∘ HQ. */
FOR_THIS_PROCESSOR void NAME(backward)(const NAME(Step) *s)
{
    const int64_t d = s->d, m = s->m;
    const REAL *w_bar = s->table + (d + 1) * s->width, *dq = s->dq, *ds = s->ds, *dout = s->dout;
    REAL *X = s->products, *HQ = X + d * m, *grad_H = s->grad_H;
    for (int64_t j = 0; j < d; j++)
        for (int64_t i = 0; i < m; i++) {
            const REAL half = HQ[j * m + i] * dq[i];
            const REAL x = X[j * m + i] * dout[i] + half + (ds ? w_bar[j] * ds[i] : 0);
            X[j * m + i] = x;
            grad_H[j * m + i] = x + half;
        }
}

/* A = HHᵀ B, and found = trace |A|, trace A, Σ |A_ij A_ji|, which bound its eigenvalues. */
FOR_THIS_PROCESSOR void NAME(shrinking)(const NAME(Step) *s, double found[3])
{
    const int64_t d = s->d, m = s->m;
    REAL *A = s->A;
    const double eta = s->eta;
    NAME(product)(s->gemm, "TN", m, m, d, 1, s->HT, m, s->HT, m, 0, A, m);
    double absolute = 0, trace = 0, squares = 0;
    for (int64_t i = 0; i < m; i++) {
        double row = 0; /* Σ_k G_ik² |b_i b_k| = Σ_k |A_ik A_ki| */
        for (int64_t k = 0; k < m; k++) {
            const double g = A[i * m + k], b = 2 * eta * s->dq[k];
            row += g * g * fabs(b);
            A[i * m + k] = (REAL)(g * b);
        }
        squares += row * fabs(2 * eta * s->dq[i]);
        absolute += fabs(A[i * m + i]);
        trace += A[i * m + i];
    }
    found[0] = absolute, found[1] = trace, found[2] = squares;
}

/* C = I + A + A² + … of at least `terms` powers of A, which becomes scratch, as N does. */
FOR_THIS_PROCESSOR void NAME(series)(const NAME(Step) *s, int64_t terms)
{
    const int64_t m = s->m;
    REAL *power = s->A, *sum = s->C, *spare = s->N;
    memcpy(sum, power, m * m * sizeof(REAL));
    for (int64_t n = 1; n < terms; n *= 2) { /* sum = A + … + Aⁿ, power = Aⁿ */
        NAME(product)(s->gemm, "NN", m, m, m, 1, sum, m, power, m, 0, spare, m);
        for (int64_t i = 0; i < m * m; i++) sum[i] += spare[i];
        if (2 * n >= terms) break;
        if (n > 1) NAME(product)(s->gemm, "NN", m, m, m, 1, power, m, power, m, 0, spare, m); /* else spare is A² already */
        REAL *other = power;
        power = spare, spare = other;
    }
    for (int64_t i = 0; i < m; i++) sum[i * m + i] += 1;
}

/* N = 2 (X Hᵀ) diag(dq) + ½ YYᵀ + ds ⊗ (Yp + ½ ‖p‖² ds). */
static void NAME(half_gram)(const NAME(Step) *s)
{
    const int64_t d = s->d, m = s->m;
    const REAL *dq = s->dq, *ds = s->ds, *dout = s->dout;
    REAL *N = s->N;
    NAME(product)(s->gemm, "TN", m, m, d, 1, s->products, m, s->HT, m, 0, N, m);
    for (int64_t i = 0; i < m; i++) {
        const REAL half = dout[i] / 2;
        const int64_t id = s->ids[i];
        for (int64_t k = 0; k < m; k++) {
            REAL n = N[i * m + k] * 2 * dq[k] + (s->ids[k] == id ? half * dout[k] : 0);
            if (ds) n += ds[i] * ((s->p ? s->p[k] : 1) * dout[k] + (REAL)(s->p_norm2 / 2) * ds[k]);
            N[i * m + k] = n;
        }
    }
}

/* Q, ω, w̄ = base + recent, and Q has the transpose of its recent changes too. */
static void NAME(add_up)(const NAME(Step) *s)
{
    enum { BLOCK = 16 };
    const int64_t d = s->d, width = s->width; /* a multiple of BLOCK: beyond d there are zeros */
    const REAL *base = s->base, *recent = s->table + (3 * d + 2) * width;
    REAL *gram = s->table;
    for (int64_t top = 0; top < d; top += BLOCK) {
        const int64_t height = d - top < BLOCK ? d - top : BLOCK;
        for (int64_t left = 0; left < d; left += BLOCK) {
            const int64_t breadth = d - left < BLOCK ? d - left : BLOCK;
            REAL turned[BLOCK][BLOCK] = {{0}}; /* of the block on the other side of the diagonal */
            for (int64_t k = 0; k < breadth; k++)
                for (int64_t j = 0; j < BLOCK; j++) turned[j][k] = recent[(left + k) * width + top + j];
            for (int64_t j = 0; j < height; j++) {
                const int64_t at = (top + j) * width + left;
                for (int64_t k = 0; k < BLOCK; k++) gram[at + k] = base[at + k] + recent[at + k] + turned[j][k];
            }
        }
    }
    for (int64_t k = d * width; k < (d + 2) * width; k++) gram[k] = base[k] + recent[k];
}

/* The update, given C = (I − A)⁻¹: `change`, which is that of the rows of V, and the whole of the table. */
FOR_THIS_PROCESSOR void NAME(update)(const NAME(Step) *s)
{
    const int64_t d = s->d, m = s->m, width = s->width;
    const double eta = s->eta;
    const REAL *HT = s->HT, *dq = s->dq, *ds = s->ds, *dout = s->dout;
    REAL *H_omega = s->products + 2 * d * m, *Hw_bar = H_omega + m, *HU_inv = Hw_bar + m, *HU = HU_inv + d * m;
    REAL *R = HU + d * m, *J = s->J, *U_inv_T = s->table + (d + 2) * width, *U = U_inv_T + d * width;

    NAME(half_gram)(s);
    memcpy(R, s->grad_H, d * m * sizeof(REAL));
    NAME(product)(s->gemm, "NT", d, m, m, -eta * eta, HT, m, s->N, m, eta, R, m);
    REAL *omega_step = R + d * m, *w_bar_step = omega_step + m;
    for (int64_t i = 0; i < m; i++) {
        const double b = 2 * eta * dq[i], sum = ds ? ds[i] : 0;
        omega_step[i] = (REAL)(b * H_omega[i] + eta * sum);
        w_bar_step[i] = (REAL)(b * Hw_bar[i] + eta * ((s->p ? s->p[i] : 1) * dout[i] + s->p_norm2 * sum));
    }
    NAME(product)(s->gemm, "NT", m, d, m, 1, s->C, m, HU_inv, m, 0, J, width);
    for (int64_t i = 0; i < m; i++) {
        const REAL minus = (REAL)(-eta * dout[i]), b = (REAL)(2 * eta * dq[i]);
        for (int64_t j = 0; j < d; j++) {
            s->change[i * d + j] = minus * J[i * width + j];
            J[i * width + j] *= b;
        }
    }
    for (int64_t j = 0; j < d; j++)
        for (int64_t i = 0; i < m; i++) HU[j * m + i] *= (REAL)(2 * eta) * dq[i];

    /* the diagonals without their 1, as stack.py explains, while changes are added */
    for (int64_t j = 0; j < d; j++) {
        U_inv_T[j * (width + 1)] = s->deviation[j];
        U[j * (width + 1)] = s->deviation[d + j];
    }
    NAME(product)(s->gemm, "TT", d, d, m, 1, J, width, HT, m, 1, U_inv_T, width);
    NAME(product)(s->gemm, "NT", 2 * d + 2, d, m, -1, HU, m, HT, m, 1, U, width);
    for (int64_t j = 0; j < d; j++) {
        s->deviation[j] = U_inv_T[j * (width + 1)]++;
        s->deviation[d + j] = U[j * (width + 1)]++;
    }
    NAME(add_up)(s);
}

#endif
