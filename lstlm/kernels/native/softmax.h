/* The cross entropy of many rows of scores. */

/* What the rows are compared with: ids and t (m,K), upstream (m,) or NULL. */
struct Aims {
    const int64_t *ids;
    const Real *t, *upstream;
    int64_t K;
};

/* LANES numbers at once: of a plain loop over them the compiler makes no vectors where it looks for the largest. */
typedef Real Lanes __attribute__((vector_size(LANES * sizeof(Real)), aligned(sizeof(Real))));

/* x (n,) ← x + scale · bias; returns the largest of them. */
PART Real add_bias(Real *x, int64_t n, const Real *bias, Real scale)
{
    int64_t j = 0;
    if (bias)
        for (; j < n; j++) x[j] += scale * bias[j];
    Lanes lanes = x[0] - Lanes{};
    for (j = 0; j + LANES <= n; j += LANES) {
        const Lanes now = *(const Lanes *)(x + j);
        lanes = now > lanes ? now : lanes;
    }
    Real high = x[0];
    for (; j < n; j++) high = x[j] > high ? x[j] : high;
    for (int64_t lane = 0; lane < LANES; lane++) high = lanes[lane] > high ? lanes[lane] : high;
    return high;
}

FOR_THIS_PROCESSOR static void cross_entropy_of(const Matrix<Real> &scores, const Aims &aims, const Real *bias, Real scale,
                                                Real *losses, int64_t first, int64_t last)
{
    const int64_t n = scores.columns;
    for (int64_t i = first; i < last; i++) {
        const int64_t *ids = aims.ids + i * aims.K;
        const Real *t = aims.t + i * aims.K, upstream = aims.upstream ? aims.upstream[i] : 1;
        Real *x = scores[i];
        const Real high = add_bias(x, n, bias, scale);
        double weight = 0, target = 0;
        for (int64_t k = 0; k < aims.K; k++) weight += t[k], target += (double)t[k] * (double)x[ids[k]];
        for (int64_t j = 0; j < n; j++) x[j] = exp_of(x[j] - high);
        const double sum = total(x, n);
        losses[i] = (Real)(weight * (log(sum) + (double)high) - target);
        const Real factor = (Real)((double)upstream * weight / sum);
        for (int64_t j = 0; j < n; j++) x[j] *= factor;
        for (int64_t k = 0; k < aims.K; k++) x[ids[k]] -= upstream * t[k]; /* a repeated id counts every time */
    }
}

/* losses (m,) ← −Σ_k t_k log softmax(scores + scale · bias)[ids_k] for each row of scores (m,n), ids and t (m,K), K known from
 * their size; scores ← the gradient of that times upstream (m,), 1 where None. */
static void cross_entropy(Matrix<Real> scores, Flat<const int64_t> ids, Flat<const Real> t, Optional<Vector<const Real>> bias,
                          double scale, Optional<Vector<const Real>> upstream, Vector<Real> losses, int64_t threads)
{
    const int64_t m = scores.rows, n = scores.columns, K = m ? ids.size / m : 0;
    need(n > 0 && losses.size == m && (!bias.data || bias.size == n), "scores (m,n), losses (m,), bias (n,)");
    need(ids.size == m * K && t.size == ids.size && (!upstream.data || upstream.size == m), "ids, t (m,K), upstream (m,)");
    check_rows({ids.data, ids.size}, n);
    const Aims aims = {ids.data, t.data, upstream.data, K};
    share_pass(threads, m, 2 * n, [=](int64_t first, int64_t last) {
        cross_entropy_of(scores, aims, bias.data, (Real)scale, losses.data, first, last);
    });
}
