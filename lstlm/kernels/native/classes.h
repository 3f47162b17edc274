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

FOR_THIS_PROCESSOR static void add_up_columns(const Matrix<Real> &x, Real *sums)
{
    for (int64_t j = 0; j < x.columns; j++) sums[j] = 0;
    for (int64_t i = 0; i < x.rows; i++)
        for (int64_t j = 0; j < x.columns; j++) sums[j] += x[i][j];
}

/* One class: scores, their cross entropy, and what belongs to h, to the rows and to the biases. */
static void one_class(const Runs &of, int64_t r, const Examples &x, const Matrix<const Real> &W, const Real *bias, Real scale,
                      const Matrix<Real> &scratch, Real *losses, const ClassGradients &to)
{
    const int64_t first = of.runs[r], n = of.runs[r + 1] - first, begin = of.begins[r], out = of.offsets[r],
                  size = of.offsets[r + 1] - out, d = W.columns;
    const Matrix<Real> scores = {scratch[first], n, size, scratch.apart};
    multiply({n, size, d, scale, 0, x.h[first], W[begin], scores.data, x.h.apart, 1, 1, W.apart, scores.apart}, 1);
    for (int64_t i = first; i < first + n; i++) {
        const int64_t target = x.rows[i] - begin;
        const Aims aims = {&target, x.t + i, x.upstream + i, 1};
        const Matrix<Real> row = {scores[i - first], 1, size, scores.apart};
        cross_entropy_of(row, aims, bias ? bias + begin : nullptr, scale, losses + i, 0, 1);
    }
    multiply({n, d, size, scale, 0, scores.data, W[begin], to.h[first], scores.apart, 1, W.apart, 1, to.h.apart}, 1);
    multiply({size, d, n, 1, 0, scores.data, x.h[first], to.rows[out], 1, scores.apart, x.h.apart, 1, to.rows.apart}, 1);
    add_up_columns(scores, to.bias + out);
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
