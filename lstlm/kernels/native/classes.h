/* The cross entropy of many examples, each among the words of one class: slices of a table whose rows lie class by class. */

/* The examples of a class lie one after the other, in `runs`: run r has the examples runs[r] … runs[r+1] − 1, the rows of the
 * table from begins[r] on, and the rows offsets[r] … offsets[r+1] − 1 of the gradients. */
struct Runs {
    Vector<const int64_t> runs, begins, offsets;
};

/* What the examples are: h (n,d), the row of the target, its weight, and upstream. */
struct Examples {
    Matrix<const Real> h;
    const int64_t *rows;
    const Real *t, *upstream;
};

/* Where the gradients go: to h (n,d), to the rows of the classes (r,d) and to their biases (r,). */
struct ClassGradients {
    Matrix<Real> h, rows;
    Real *bias;
};

/* x·y, in as many sums side by side as there are lanes. */
PART Real dot_in_lanes(const Real *x, const Real *y, int64_t n)
{
    int64_t j = 0;
    Lanes lanes = {};
    for (; j + LANES <= n; j += LANES) lanes += *(const Lanes *)(x + j) * *(const Lanes *)(y + j);
    Real sum = 0;
    for (; j < n; j++) sum += x[j] * y[j];
    for (int64_t lane = 0; lane < LANES; lane++) sum += lanes[lane];
    return sum;
}

/* One class: scores, their cross entropy, and what belongs to h, to the rows and to the biases. Most classes have one or two
 * examples of a minibatch: a row is read from memory once and taken by all of them, where `multiply` would copy it first. */
FOR_THIS_PROCESSOR static void one_class(const Runs &of, int64_t r, const Examples &x, const Matrix<const Real> &W,
                                         const Real *bias, Real scale, const Matrix<Real> &scores, Real *losses,
                                         const ClassGradients &to)
{
    const int64_t first = of.runs[r], last = of.runs[r + 1], begin = of.begins[r], out = of.offsets[r],
                  size = of.offsets[r + 1] - out, d = W.columns;
    for (int64_t j = 0; j < size; j++)
        for (int64_t i = first; i < last; i++) scores[i][j] = scale * dot_in_lanes(x.h[i], W[begin + j], d);
    for (int64_t i = first; i < last; i++) {
        const int64_t target = x.rows[i] - begin;
        const Aims aims = {&target, x.t + i, x.upstream + i, 1};
        const Matrix<Real> row = {scores[i], 1, size, size};
        cross_entropy_of(row, aims, bias ? bias + begin : nullptr, scale, losses + i, 0, 1);
        for (int64_t l = 0; l < d; l++) to.h[i][l] = 0;
    }
    for (int64_t j = 0; j < size; j++) {
        const Real *row = W[begin + j];
        Real *sum = to.rows[out + j], bias_sum = 0;
        for (int64_t l = 0; l < d; l++) sum[l] = 0;
        for (int64_t i = first; i < last; i++) {
            const Real g = scores[i][j], scaled = scale * g, *h = x.h[i];
            Real *dh = to.h[i];
            bias_sum += g;
            for (int64_t l = 0; l < d; l++) sum[l] += g * h[l];
            for (int64_t l = 0; l < d; l++) dh[l] += scaled * row[l];
        }
        to.bias[out + j] = bias_sum;
    }
}

/* losses (n,) ← −t log softmax(scale · (W h + bias))[row] over the rows of each example's class; dh (n,d), dW (r,d) and db (r,)
 * ← the gradients of Σ upstream · losses to h, W and the bias, dW and db for the rows of the classes that occur, one class
 * after the other. Scratch: scores (n,·), as wide as the largest of these classes. */
static void class_entropy(Matrix<const Real> h, Matrix<const Real> W, Optional<Vector<const Real>> bias, double scale,
                          Vector<const int64_t> runs, Vector<const int64_t> begins, Vector<const int64_t> offsets,
                          Vector<const int64_t> rows, Vector<const Real> t, Vector<const Real> upstream, Vector<Real> losses,
                          Matrix<Real> dh, Matrix<Real> dW, Vector<Real> db, Matrix<Real> scores, int64_t threads)
{
    const int64_t n = h.rows, d = h.columns, u = begins.size;
    need(W.columns == d && d > 0 && (!bias.data || bias.size == W.rows), "W (D,d), bias (D,)");
    need(rows.size == n && t.size == n && upstream.size == n && losses.size == n, "rows, t, upstream, losses (n,)");
    need(runs.size == u + 1 && offsets.size == u + 1, "runs, offsets (u+1,), begins (u,)");
    need(dh.rows == n && dh.columns == d && dW.columns == d && db.size == dW.rows && scores.rows == n, "dh, dW (·,d), db, scores");
    check_offsets(runs, n);
    check_offsets(offsets, dW.rows);
    for (int64_t r = 0; r < u; r++) {
        const int64_t size = offsets[r + 1] - offsets[r];
        need(begins[r] >= 0 && begins[r] + size <= W.rows && size <= scores.columns, "classes within the table");
        for (int64_t i = runs[r]; i < runs[r + 1]; i++)
            need(rows[i] >= begins[r] && rows[i] < begins[r] + size, "targets within their classes");
    }
    const Runs of = {runs, begins, offsets};
    const Examples x = {h, rows.data, t.data, upstream.data};
    const ClassGradients to = {dh, dW, db.data};
    share_pass(threads, u, u ? 3 * dW.rows * d / u : 0, [&](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; r++)
            one_class(of, r, x, W, bias.data, (Real)scale, scores, losses.data, to);
    });
}
