/* The cross entropy of many examples, each among the words of one class: slices of a table whose rows lie class by class. */

/* The classes that occur: the examples of one lie one after the other, from runs[r] to runs[r+1] − 1; it has sizes[r] rows of
 * the table from begins[r] on. */
struct Runs {
    Vector<const int64_t> runs, begins, sizes;
};

/* Whether they lie within n examples and `rows` rows of a table, and are no larger than `widest`. */
static void check_runs(const Runs &of, int64_t n, int64_t rows, int64_t widest)
{
    need(of.runs.size == of.begins.size + 1 && of.sizes.size == of.begins.size, "runs (u+1,), begins, sizes (u,)");
    check_offsets(of.runs, n);
    for (int64_t r = 0; r < of.begins.size; r++)
        need(of.begins[r] >= 0 && of.sizes[r] > 0 && of.sizes[r] <= widest && of.begins[r] <= rows - of.sizes[r],
             "classes within the table");
}

/* What the examples are: h (n,d), the row of the target, its weight, and upstream. */
struct Examples {
    Matrix<const Real> h;
    const int64_t *rows;
    const Real *t, *upstream;
};

enum { ROWS = 4 }; /* at once, so that their sums do not wait for each other */

/* x·y, in as many sums side by side as there are lanes. */
PART Real sum_of(const Lanes &lanes, const Real *x, const Real *y, int64_t j, int64_t n)
{
    Real sum = 0;
    for (; j < n; j++) sum += x[j] * y[j];
    for (int64_t lane = 0; lane < LANES; lane++) sum += lanes[lane];
    return sum;
}

PART Lanes &lanes_of(const Real *x) { return *(Lanes *)x; }

PART Real dot_in_lanes(const Real *x, const Real *y, int64_t n)
{
    int64_t j = 0;
    Lanes lanes = {};
    for (; j + LANES <= n; j += LANES) lanes += lanes_of(x + j) * lanes_of(y + j);
    return sum_of(lanes, x, y, j, n);
}

/* dots ← x·rows[k]. */
PART void dots_in_lanes(const Real *x, const Real *const *rows, int64_t n, Real *dots)
{
    int64_t j = 0;
    Lanes a = {}, b = {}, c = {}, d = {};
    for (; j + LANES <= n; j += LANES) {
        const Lanes now = lanes_of(x + j);
        a += now * lanes_of(rows[0] + j), b += now * lanes_of(rows[1] + j);
        c += now * lanes_of(rows[2] + j), d += now * lanes_of(rows[3] + j);
    }
    dots[0] = sum_of(a, x, rows[0], j, n), dots[1] = sum_of(b, x, rows[1], j, n);
    dots[2] = sum_of(c, x, rows[2], j, n), dots[3] = sum_of(d, x, rows[3], j, n);
}

/* One class. Most have one or two examples of a minibatch: a row is read from memory once and taken by all of them, where
 * `multiply` would copy it first. */
FOR_THIS_PROCESSOR static void one_class(const Runs &of, int64_t r, const Examples &x, const Matrix<const Real> &W,
                                         const Real *bias, Real scale, Real *losses, const Matrix<Real> &dh,
                                         const Matrix<Real> &G)
{
    const int64_t first = of.runs[r], last = of.runs[r + 1], begin = of.begins[r], size = of.sizes[r], d = W.columns;
    const Real *rows[ROWS];
    Real some[ROWS];
    for (int64_t j = 0; j < size; j += ROWS) {
        for (int64_t k = 0; k < ROWS; k++) rows[k] = W[begin + (j + k < size ? j + k : j)];
        for (int64_t i = first; i < last; i++) {
            dots_in_lanes(x.h[i], rows, d, some);
            for (int64_t k = 0; k < ROWS && j + k < size; k++) G[i][j + k] = scale * some[k];
        }
    }
    for (int64_t i = first; i < last; i++) {
        const int64_t target = x.rows[i] - begin;
        const Aims aims = {&target, x.t + i, x.upstream + i, 1};
        const Matrix<Real> row = {G[i], 1, size, size};
        cross_entropy_of(row, aims, bias ? bias + begin : nullptr, scale, losses + i, 0, 1);
        if (size == 1) G[i][0] = 0; /* certain: of what is left by rounding, Adagrad would make a whole step */
        for (int64_t l = 0; l < d; l++) dh[i][l] = 0;
    }
    for (int64_t j = 0; j < size; j += ROWS) {
        for (int64_t k = 0; k < ROWS; k++) rows[k] = W[begin + (j + k < size ? j + k : j)];
        for (int64_t i = first; i < last; i++) {
            for (int64_t k = 0; k < ROWS; k++) some[k] = j + k < size ? scale * G[i][j + k] : 0;
            const Real *p = rows[0], *q = rows[1], *s = rows[2], *t = rows[3], a = some[0], b = some[1], c = some[2],
                       e = some[3];
            Real *to = dh[i];
            for (int64_t l = 0; l < d; l++) to[l] += (a * p[l] + b * q[l]) + (c * s[l] + e * t[l]);
        }
    }
}

/* losses (n,) ← −t log softmax(scale · (W h + bias))[row] over the rows of each example's class, G (n,·) ← the gradient of
 * upstream · losses to the scores of that class, dh (n,d) ← that to h. */
static void class_entropy(Matrix<const Real> h, Matrix<const Real> W, Optional<Vector<const Real>> bias, double scale,
                          Vector<const int64_t> runs, Vector<const int64_t> begins, Vector<const int64_t> sizes,
                          Vector<const int64_t> rows, Vector<const Real> t, Vector<const Real> upstream, Vector<Real> losses,
                          Matrix<Real> dh, Matrix<Real> G, int64_t threads)
{
    const int64_t n = h.rows, d = h.columns, u = begins.size;
    const Runs of = {runs, begins, sizes};
    need(W.columns == d && d > 0 && (!bias.data || bias.size == W.rows), "W (D,d), bias (D,)");
    need(rows.size == n && t.size == n && upstream.size == n && losses.size == n, "rows, t, upstream, losses (n,)");
    need(dh.rows == n && dh.columns == d && G.rows == n, "dh (n,d), G (n,·)");
    check_runs(of, n, W.rows, G.columns);
    for (int64_t r = 0; r < u; r++)
        for (int64_t i = runs[r]; i < runs[r + 1]; i++)
            need(rows[i] >= begins[r] && rows[i] < begins[r] + sizes[r], "targets within their classes");
    const Examples x = {h, rows.data, t.data, upstream.data};
    share_pass(threads, u, u ? 2 * n * G.columns * d / u : 0, [=](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; r++) one_class(of, r, x, W, bias.data, (Real)scale, losses.data, dh, G);
    });
}

FOR_THIS_PROCESSOR static void adagrad_of_class(const Runs &of, int64_t r, const Matrix<const Real> &h,
                                                const Matrix<const Real> &G, const Matrix<Real> &W, Real *bias,
                                                Real *squares, double rate, double epsilon, Real *sum)
{
    const int64_t first = of.runs[r], last = of.runs[r + 1], d = W.columns;
    const bool single = last - first == 1; /* then the gradient of a row is a multiple of h */
    const Real *along = single ? h[first] : sum;
    double square = single ? (double)dot_in_lanes(along, along, d) : 0;
    for (int64_t j = 0; j < of.sizes[r]; j++) {
        const int64_t row = of.begins[r] + j;
        Real times = single ? G[first][j] : 1, bias_sum = single ? times : 0;
        if (!single) {
            for (int64_t l = 0; l < d; l++) sum[l] = 0;
            for (int64_t i = first; i < last; i++) {
                const Real g = G[i][j], *x = h[i];
                bias_sum += g;
                for (int64_t l = 0; l < d; l++) sum[l] += g * x[l];
            }
            square = (double)dot_in_lanes(sum, sum, d);
        }
        const double more = (double)times * (double)times * square + (bias ? (double)bias_sum * (double)bias_sum : 0);
        squares[row] += (Real)(more / (double)(d + (bias ? 1 : 0)));
        const Real factor = (Real)(-rate / (sqrt((double)squares[row]) + epsilon));
        times *= factor;
        Real *w = W[row];
        for (int64_t l = 0; l < d; l++) w[l] += times * along[l];
        if (bias) bias[row] += factor * bias_sum;
    }
}

/* One step of row-wise Adagrad for the rows of the classes that occur, whose gradient is Gᵀh, class by class: as adagrad_table,
 * without that gradient in memory, which would be the larger part of the work. Scratch: sums (u,d). */
static void adagrad_classes(Matrix<Real> W, Optional<Vector<Real>> bias, Vector<Real> squares, Vector<const int64_t> runs,
                            Vector<const int64_t> begins, Vector<const int64_t> sizes, Matrix<const Real> h,
                            Matrix<const Real> G, double rate, double epsilon, Matrix<Real> sums, int64_t threads)
{
    const int64_t d = W.columns, u = begins.size;
    const Runs of = {runs, begins, sizes};
    need(squares.size == W.rows && (!bias.data || bias.size == W.rows), "squares, bias (D,)");
    need(h.columns == d && G.rows == h.rows && sums.rows == u && sums.columns == d, "h (n,d), G (n,·), sums (u,d)");
    check_runs(of, h.rows, W.rows, G.columns);
    for (int64_t r = 1; r < u; r++) need(begins[r] >= begins[r - 1] + sizes[r - 1], "every class once, in order");
    share_pass(threads, u, u ? h.rows * G.columns * d / u : 0, [=](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; r++)
            adagrad_of_class(of, r, h, G, W, bias.data, squares.data, rate, epsilon, sums[r]);
    });
}
