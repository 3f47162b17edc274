/* The softmax of many rows of scores. */

FOR_THIS_PROCESSOR static void exponentials_of(const Matrix<Real> &scores, const Real *bias, Real *top, Real *total_of,
                                               int64_t first, int64_t last)
{
    const int64_t n = scores.columns;
    for (int64_t i = first; i < last; i++) {
        Real *x = scores[i], lanes[LANES];
        if (bias)
            for (int64_t j = 0; j < n; j++) x[j] += bias[j];
        for (int64_t lane = 0; lane < LANES; lane++) lanes[lane] = x[0];
        int64_t j = 0;
        for (; j + LANES <= n; j += LANES)
            for (int64_t lane = 0; lane < LANES; lane++) lanes[lane] = x[j + lane] > lanes[lane] ? x[j + lane] : lanes[lane];
        Real high = x[0];
        for (; j < n; j++) high = x[j] > high ? x[j] : high;
        for (int64_t lane = 0; lane < LANES; lane++) high = lanes[lane] > high ? lanes[lane] : high;
        for (j = 0; j < n; j++) x[j] = exp_of(x[j] - high);
        top[i] = high, total_of[i] = (Real)total(x, n);
    }
}

/* top (m,) ← the largest of each row of scores + bias, scores (m,n), which become exp(scores + bias − top); totals (m,) ← the
 * sums of these. */
static void exponentials(Matrix<Real> scores, Optional<Vector<const Real>> bias, Vector<Real> top, Vector<Real> totals,
                         int64_t threads)
{
    const int64_t m = scores.rows, n = scores.columns;
    need(n > 0 && top.size == m && totals.size == m && (!bias.data || bias.size == n), "scores (m,n), bias (n,), top (m,)");
    share_pass(threads, m, n, [&](int64_t first, int64_t last) {
        exponentials_of(scores, bias.data, top.data, totals.data, first, last);
    });
}
