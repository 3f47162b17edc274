/* The LowRank step of touched_rows.py for one target an example, by its letters and in its order: compiled.py.
 *
 * A tensor (m,d) of a minibatch is kept as (d,m), examples as columns. */

/* A step, as lstlm/spherical/compiled.py fills it in. */
typedef struct {
    const NAME(Products) *by;
    int64_t d, m, width, D;         /* width: how far apart the rows of table, base and J are */
    REAL *table, *base, *deviation; /* the state: stack.py */
    REAL *V;                        /* (D,d) */
    const int64_t *ids;             /* (m,) */
    const REAL *HT, *p;             /* (d,m); p (m,) or NULL for ones */
    REAL *rows;                     /* (m,d): V[ids], then brought to the current frame */
    REAL *products;                 /* (5d+4,m): X, HQ, Hω, Hw̄, HU⁻¹, HUᵀ, and the steps of Q (∇H before), ω, w̄ */
    double *outputs;                /* (3,m): q, s, o */
    const REAL *dq, *ds, *dout;     /* (m,); ds is NULL where the loss ignores s */
    REAL *grad_H;                   /* (d,m) */
    REAL *A, *N, *C;                /* (m,m) */
    REAL *J;                        /* (m,width) */
    int32_t *stamp;                 /* (D,), history.py; NULL where it is empty: what was read is in the current frame */
    int64_t now;
    double eta, p_norm2;
    int64_t loss;                   /* which, and its parameters */
    double a, b;
    const double *t, *upstream;     /* (m,) */
    REAL *partials;                 /* (4,m): ℓ, dq, ds, do */
} NAME(Step);

/* What the table says of H, while the rows of V are on their way from memory, and these. Returns the place of an id that
 * is no row, with nothing done; −1 where all are. */
int64_t NAME(read)(const NAME(Step) *s)
{
    const int64_t d = s->d, m = s->m, wrong = outside(s->ids, m, s->D);
    if (wrong >= 0) return wrong;
    for (int64_t i = 0; i < m; i++) NAME(prefetch)(s->V + s->ids[i] * d, d);
    NAME(product)(s->by, "NN", 3 * d + 2, m, d, 1, s->table, s->width, s->HT, m, 0, s->products + d * m, m);
    for (int64_t i = 0; i < m; i++) memcpy(s->rows + i * d, s->V + s->ids[i] * d, d * sizeof(REAL));
    return -1;
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
    NAME(product)(s->by, "TT", d, m, d, 1, U, s->width, s->rows, d, 1, X, m);
    memset(s->outputs, 0, 3 * m * sizeof(double));
    for (int64_t j = 0; j < d; j++)
        for (int64_t i = 0; i < m; i++) {
            const double h = HT[j * m + i];
            q[i] += h * HQ[j * m + i];
            o[i] += h * X[j * m + i];
        }
    for (int64_t i = 0; i < m; i++) sum[i] = Hw_bar[i];
}

/* X ← YW + dq ∘ HQ + ds ⊗ w̄ and ∇H = X + dq ∘ HQ, once to give away and once to keep. */
FOR_THIS_PROCESSOR void NAME(backward)(const NAME(Step) *s)
{
    const int64_t d = s->d, m = s->m;
    const REAL *w_bar = s->table + (d + 1) * s->width, *dq = s->dq, *ds = s->ds, *dout = s->dout;
    REAL *X = s->products, *HQ = X + d * m, *kept = X + (4 * d + 2) * m, *grad_H = s->grad_H;
    for (int64_t j = 0; j < d; j++)
        for (int64_t i = 0; i < m; i++) {
            const REAL half = HQ[j * m + i] * dq[i];
            const REAL x = X[j * m + i] * dout[i] + half + (ds ? w_bar[j] * ds[i] : 0);
            X[j * m + i] = x;
            grad_H[j * m + i] = kept[j * m + i] = x + half;
        }
}

/* found (4,m) ← ℓ, and dq, ds, do times upstream (m,), given outputs (3,m): q, s, o. With a prior, p (m,) is √π at the
 * targets and D = Σπ. Returns whether all of them are finite. */
PART int64_t NAME(losses)(int64_t loss, double a, double b, double D, int64_t m, const double *outputs, const REAL *p,
                          const double *t, const double *upstream, REAL *found)
{
    double total = 0;
    for (int64_t i = 0; i < m; i++) {
        const double q = outputs[i], s = outputs[m + i], o = outputs[2 * m + i], tilt = p ? p[i] : 1;
        const Partials l = partials_of(loss, a, b, D, q, s, o / tilt, t[i]);
        const REAL value = (REAL)(p ? l.value - 2 * t[i] * log(tilt) : l.value), dq = (REAL)(l.dq * upstream[i]);
        const REAL ds = (REAL)(l.ds * upstream[i]), dout = (REAL)(l.dout / tilt * upstream[i]);
        found[i] = value, found[m + i] = dq, found[2 * m + i] = ds, found[3 * m + i] = dout;
        total += q + value + dq + ds + dout;
    }
    return isfinite(total);
}

/* `outputs`, `losses` and `backward` at once; returns whether all that the first two gave is finite: else there is no ∇H. */
int64_t NAME(differentiate)(NAME(Step) *s)
{
    const int64_t m = s->m;
    NAME(outputs)(s);
    if (!NAME(losses)(s->loss, s->a, s->b, s->p_norm2, m, s->outputs, s->p, s->t, s->upstream, s->partials)) return 0;
    s->dq = s->partials + m, s->dout = s->partials + 3 * m;
    s->ds = s->loss == SQUARED || s->loss == SPHERICAL ? NULL : s->partials + 2 * m;
    NAME(backward)(s);
    return 1;
}

/* out (m,m) ← HHᵀ, which is symmetric: a quarter of it is copied. */
PART void NAME(gram)(const NAME(Step) *s, REAL *out)
{
    const int64_t d = s->d, m = s->m, half = m / 2;
    NAME(product)(s->by, "TN", m, half, d, 1, s->HT, m, s->HT, m, 0, out, m);
    NAME(product)(s->by, "TN", m - half, m - half, d, 1, s->HT + half, m, s->HT + half, m, 0, out + half * m + half, m);
    for (int64_t i = 0; i < half; i++)
        for (int64_t k = half; k < m; k++) out[i * m + k] = out[k * m + i];
}

/* A = HHᵀ B, and found = trace |A|, trace A, Σ |A_ij A_ji|, which bound its eigenvalues. */
FOR_THIS_PROCESSOR void NAME(shrinking)(const NAME(Step) *s, double found[3])
{
    const int64_t m = s->m;
    REAL *A = s->A;
    const double eta = s->eta;
    NAME(gram)(s, A);
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
PART void NAME(series)(const NAME(Step) *s, int64_t terms)
{
    const int64_t m = s->m;
    REAL *power = s->A, *sum = s->C, *spare = s->N;
    memcpy(sum, power, m * m * sizeof(REAL));
    for (int64_t n = 1; n < terms; n *= 2) { /* sum = A + … + Aⁿ, power = Aⁿ */
        NAME(product)(s->by, "NN", m, m, m, 1, sum, m, power, m, 0, spare, m);
        for (int64_t i = 0; i < m * m; i++) sum[i] += spare[i];
        if (2 * n >= terms) break;
        if (n > 1) NAME(product)(s->by, "NN", m, m, m, 1, power, m, power, m, 0, spare, m); /* else spare is A² already */
        REAL *other = power;
        power = spare, spare = other;
    }
    for (int64_t i = 0; i < m; i++) sum[i * m + i] += 1;
}

/* N = 2 (X Hᵀ) diag(dq) + ½ YYᵀ + ds ⊗ (Yp + ½ ‖p‖² ds). */
PART void NAME(half_gram)(const NAME(Step) *s)
{
    const int64_t d = s->d, m = s->m;
    const REAL *dq = s->dq, *ds = s->ds, *dout = s->dout;
    REAL *N = s->N;
    NAME(product)(s->by, "TN", m, m, d, 1, s->products, m, s->HT, m, 0, N, m);
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
PART void NAME(add_up)(const NAME(Step) *s)
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

/* V[ids] ← rows − η YᵀJ; changes of a repeated id add up. */
PART void NAME(change_rows)(const NAME(Step) *s)
{
    const int64_t d = s->d, m = s->m;
    for (int64_t i = 0; i < m && s->stamp; i++) { /* a repeated id: the same row twice */
        memcpy(s->V + s->ids[i] * d, s->rows + i * d, d * sizeof(REAL));
        s->stamp[s->ids[i]] = (int32_t)s->now;
    }
    for (int64_t i = 0; i < m; i++) {
        const REAL minus = (REAL)(-s->eta * s->dout[i]), *J = s->J + i * s->width;
        REAL *row = s->V + s->ids[i] * d;
        for (int64_t j = 0; j < d; j++) row[j] += minus * J[j];
    }
}

/* The update, of the rows of V and of the whole of the table, by (I − A)⁻¹ = a series of so many `terms`; by C, which
 * then is that inverse, where `terms` is 0. Returns what `read` returns. */
FOR_THIS_PROCESSOR int64_t NAME(update)(const NAME(Step) *s, int64_t terms)
{
    const int64_t d = s->d, m = s->m, width = s->width, wrong = outside(s->ids, m, s->D);
    if (wrong >= 0) return wrong;
    const double eta = s->eta;
    const REAL *HT = s->HT, *dq = s->dq, *ds = s->ds, *dout = s->dout;
    REAL *H_omega = s->products + 2 * d * m, *Hw_bar = H_omega + m, *HU_inv = Hw_bar + m, *HU = HU_inv + d * m;
    REAL *R = HU + d * m, *J = s->J, *U_inv_T = s->table + (d + 2) * width, *U = U_inv_T + d * width;

    if (terms) NAME(series)(s, terms);
    NAME(half_gram)(s);
    NAME(product)(s->by, "NT", d, m, m, -eta * eta, HT, m, s->N, m, eta, R, m);
    REAL *omega_step = R + d * m, *w_bar_step = omega_step + m;
    for (int64_t i = 0; i < m; i++) {
        const double b = 2 * eta * dq[i], sum = ds ? ds[i] : 0;
        omega_step[i] = (REAL)(b * H_omega[i] + eta * sum);
        w_bar_step[i] = (REAL)(b * Hw_bar[i] + eta * ((s->p ? s->p[i] : 1) * dout[i] + s->p_norm2 * sum));
    }
    NAME(product)(s->by, "NT", m, d, m, 1, s->C, m, HU_inv, m, 0, J, width);
    NAME(change_rows)(s);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < d; j++) J[i * width + j] *= (REAL)(2 * eta * dq[i]);
    for (int64_t j = 0; j < d; j++)
        for (int64_t i = 0; i < m; i++) HU[j * m + i] *= (REAL)(2 * eta) * dq[i];

    /* the diagonals without their 1, as stack.py explains, while changes are added */
    for (int64_t j = 0; j < d; j++) {
        U_inv_T[j * (width + 1)] = s->deviation[j];
        U[j * (width + 1)] = s->deviation[d + j];
    }
    NAME(product)(s->by, "TT", d, d, m, 1, J, width, HT, m, 1, U_inv_T, width);
    NAME(product)(s->by, "NT", 2 * d + 2, d, m, -1, HU, m, HT, m, 1, U, width);
    for (int64_t j = 0; j < d; j++) {
        s->deviation[j] = U_inv_T[j * (width + 1)]++;
        s->deviation[d + j] = U[j * (width + 1)]++;
    }
    NAME(add_up)(s);
    return -1;
}

/* For the caller to compare with what it knows: a library of another revision must not be called. */
int64_t NAME(size_of_structs)(void)
{
    const int64_t two = sizeof(NAME(Step)) * 1000 + sizeof(NAME(Segments));
    return (two * 1000 + sizeof(NAME(Products))) * 1000 + sizeof(NAME(Below));
}
