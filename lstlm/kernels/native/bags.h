/* Bags of rows: pair k belongs to row place[k] of `rows` (u,d), and to the example i with offsets[i] ≤ k < offsets[i + 1]. */

struct Bags {
    const int64_t *place, *offsets; /* (n,), (m+1,) */
    int64_t n, m, rows;
};

static Bags check_bags(const Vector<const int64_t> &place, const Vector<const int64_t> &offsets, int64_t rows)
{
    const int64_t n = place.size, m = offsets.size - 1;
    check_offsets(offsets, n);
    check_rows(place, rows);
    return {place.data, offsets.data, n, m, rows};
}

/* out (n,) ← rows[place[k]] · X[i] for each pair, X (m,d). */
FOR_THIS_PROCESSOR static void dot_pairs(const Matrix<const Real> &rows, const Bags &bags, const Matrix<const Real> &X,
                                         double *out)
{
    for (int64_t i = 0; i < bags.m; i++)
        for (int64_t k = bags.offsets[i]; k < bags.offsets[i + 1]; k++)
            out[k] = dot_of(rows[bags.place[k]], X[i], rows.columns);
}

static void dot_bags(Matrix<const Real> rows, Vector<const int64_t> place, Vector<const int64_t> offsets,
                     Matrix<const Real> X, Vector<double> out)
{
    const Bags bags = check_bags(place, offsets, rows.rows);
    need(X.rows == bags.m && X.columns == rows.columns && out.size == bags.n, "X (m,d), out (n,)");
    dot_pairs(rows, bags, X, out.data);
}

/* out (m,d) ← the sum of weights[k] · rows[place[k]] over the pairs of each example. */
FOR_THIS_PROCESSOR static void sum_pairs(const Matrix<const Real> &rows, const Bags &bags, const Real *weights,
                                         const Matrix<Real> &out)
{
    const int64_t d = rows.columns;
    for (int64_t i = 0; i < bags.m; i++) {
        Real *sum = out[i];
        int64_t k = bags.offsets[i];
        const int64_t end = bags.offsets[i + 1];
        if (k == end) memset(sum, 0, d * sizeof(Real));
        for (bool first = true; k < end; k++, first = false) {
            const Real *row = rows[bags.place[k]], weight = weights[k];
            for (int64_t j = 0; j < d; j++) sum[j] = (first ? 0 : sum[j]) + weight * row[j];
        }
    }
}

static void sum_bags(Matrix<const Real> rows, Vector<const int64_t> place, Vector<const int64_t> offsets,
                     Vector<const Real> weights, Matrix<Real> out)
{
    const Bags bags = check_bags(place, offsets, rows.rows);
    need(weights.size == bags.n && out.rows == bags.m && out.columns == rows.columns, "weights (n,), out (m,d)");
    sum_pairs(rows, bags, weights.data, out);
}

FOR_THIS_PROCESSOR static void add_pairs(const Matrix<Real> &rows, const Bags &bags, const Matrix<const Real> &X,
                                         const Real *weights, Real times)
{
    for (int64_t i = 0; i < bags.m; i++)
        for (int64_t k = bags.offsets[i]; k < bags.offsets[i + 1]; k++) {
            Real *row = rows[bags.place[k]];
            const Real factor = times * weights[k], *more = X[i];
            for (int64_t j = 0; j < rows.columns; j++) row[j] += factor * more[j];
        }
}

/* rows[place[k]] += times · weights[k] · X[i] for each pair: a word that is the target twice counts twice. */
static void add_bags(Matrix<Real> rows, Vector<const int64_t> place, Vector<const int64_t> offsets, Matrix<const Real> X,
                     Vector<const Real> weights, double times)
{
    const Bags bags = check_bags(place, offsets, rows.rows);
    need(X.rows == bags.m && X.columns == rows.columns && weights.size == bags.n, "X (m,d), weights (n,)");
    add_pairs(rows, bags, X, weights.data, (Real)times);
}

/* N (m,m) += ½ YYᵀ, Y (m,u) with weights (n,) at place. Scratch: links (n+u+1,): the pairs word by word. */
PART void add_half_gram(const Bags &bags, const Real *weights, Real *N, int64_t *links)
{
    int64_t *start = links, *pairs = links + bags.rows + 1; /* those of a word after each other: k, and in the last 24 bits i */
    const int64_t u = bags.rows, m = bags.m;
    memset(start, 0, (u + 1) * sizeof(int64_t));
    for (int64_t k = 0; k < bags.n; k++) start[bags.place[k] + 1]++;
    for (int64_t w = 0; w < u; w++) start[w + 1] += start[w];
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = bags.offsets[i]; k < bags.offsets[i + 1]; k++) pairs[start[bags.place[k]]++] = (k << 24) | i;
    int64_t first = 0;
    for (int64_t w = 0; w < u; first = start[w++]) /* start[w] has moved to the end of word w */
        for (int64_t a = first; a < start[w]; a++) {
            const int64_t mask = (1 << 24) - 1;
            const Real half = weights[pairs[a] >> 24] / 2;
            Real *row = N + (pairs[a] & mask) * m;
            for (int64_t b = first; b < start[w]; b++) row[pairs[b] & mask] += half * weights[pairs[b] >> 24];
        }
}

/* partials ← ℓ, and dq, ds, do times upstream (m,), 1/m where there is none, given the outputs and target values t (n,), 1 where
 * there are none. With a prior, p (n,) is √π at the targets and D = Σπ. Returns whether all of them are finite. */
static int64_t losses(Vector<Real> partials, int64_t kind, double a, double b, double D, Vector<const double> outputs,
                      Optional<Vector<const Real>> p, Optional<Vector<const double>> t, Vector<const int64_t> offsets,
                      Optional<Vector<const double>> upstream, int64_t threads)
{
    const int64_t m = offsets.size - 1, n = outputs.size - 2 * m;
    need(kind >= SQUARED && kind <= Z_LOSS, "a loss that is known here");
    check_offsets(offsets, n);
    need(partials.size == 3 * m + n && (!t.data || t.size == n), "partials (3m+n,), outputs (2m+n,), t (n,)");
    need((!p.data || p.size == n) && (!upstream.data || upstream.size == m), "p (n,), upstream (m,)");
    Real *value = partials.data, *dq = value + m, *ds = dq + m, *dout = ds + m;
    const double *q = outputs.data, *s = q + m, *o = s + m;
    share_pass(threads, m, 64 * (1 + n / (m + 1)), [=](int64_t first, int64_t last) { /* a logarithm takes as long */
        for (int64_t i = first; i < last; i++) {
            const double weight = upstream.data ? upstream[i] : 1.0 / (double)m;
            Example example({kind, a, b, D}, q[i], s[i]);
            for (int64_t k = offsets[i]; k < offsets[i + 1]; k++) {
                const double tilt = p.data ? p[k] : 1, target = t.data ? t[k] : 1;
                dout[k] = (Real)(example.add(o[k] / tilt, target) / tilt * weight);
                if (p.data) example.sum.value -= 2 * target * log(tilt);
            }
            value[i] = (Real)example.sum.value;
            dq[i] = (Real)(example.sum.dq * weight), ds[i] = (Real)(example.sum.ds * weight);
        }
    });
    double total = 0;
    for (int64_t i = 0; i < m; i++) total += q[i];
    for (int64_t i = 0; i < partials.size; i++) total += partials[i];
    return std::isfinite(total);
}
