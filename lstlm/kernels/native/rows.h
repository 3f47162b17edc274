/* Rows of a large table by id. Ids are looked at first: one that is no row is refused with nothing done. */

/* Ask for a row of a table that will be needed soon. */
PART void prefetch(const Real *row, int64_t size)
{
    for (int64_t byte = 0; byte < size * (int64_t)sizeof(Real); byte += LINE) __builtin_prefetch((const char *)row + byte);
}

/* The sum of x (n,), in float64. */
PART double total(const Real *x, int64_t n)
{
    double lanes[LANES] = {0}, total = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int64_t lane = 0; lane < LANES; lane++) lanes[lane] += x[i + lane];
    for (; i < n; i++) total += x[i];
    for (int64_t lane = 0; lane < LANES; lane++) total += lanes[lane];
    return total;
}

/* x·y for x, y (n,), in float64. */
PART double dot_of(const Real *x, const Real *y, int64_t n)
{
    double lanes[LANES] = {0}, total = 0;
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES)
        for (int64_t lane = 0; lane < LANES; lane++) lanes[lane] += (double)x[j + lane] * (double)y[j + lane];
    for (; j < n; j++) total += (double)x[j] * (double)y[j];
    for (int64_t lane = 0; lane < LANES; lane++) total += lanes[lane];
    return total;
}

FOR_THIS_PROCESSOR static void add_up_rows(const Matrix<const Real> &table, const int64_t *ids, int64_t each, Real scale,
                                           const Matrix<Real> &out, int64_t first, int64_t last)
{
    const int64_t size = table.columns, n = last * each;
    for (int64_t k = first * each; k < n; k++) {
        if (k + AHEAD < n) prefetch(table[ids[k + AHEAD]], size);
        const Real *row = table[ids[k]];
        Real *sum = out[k / each];
        if (k % each == 0)
            for (int64_t j = 0; j < size; j++) sum[j] = scale * row[j];
        else
            for (int64_t j = 0; j < size; j++) sum[j] += scale * row[j];
    }
}

/* out (bags,size) ← scale · the sum of the rows ids[i·each], … ids[i·each + each − 1] of table. */
static void sum_rows(Matrix<const Real> table, Vector<const int64_t> ids, int64_t each, double scale, Matrix<Real> out,
                     int64_t threads)
{
    need(each > 0 && ids.size == out.rows * each && out.columns == table.columns, "`each` ids for a row of the result");
    check_rows(ids, table.rows);
    share_pass(threads, out.rows, each * table.columns, [=](int64_t first, int64_t last) {
        add_up_rows(table, ids.data, each, (Real)scale, out, first, last);
    });
}

/* Row ids[k] of table ← values[k], for ids each of which is there once. */
static void write_rows(Matrix<Real> table, Vector<const int64_t> ids, Matrix<const Real> values, int64_t threads)
{
    need(values.rows == ids.size && values.columns == table.columns, "a row of values for an id");
    check_rows(ids, table.rows);
    share_pass(threads, ids.size, table.columns, [=](int64_t first, int64_t last) {
        for (int64_t k = first; k < last; k++) {
            if (k + AHEAD < last) prefetch(table[ids[k + AHEAD]], table.columns);
            memcpy(table[ids[k]], values[k], table.columns * sizeof(Real));
        }
    });
}

FOR_THIS_PROCESSOR static void add_to_rows(const Matrix<Real> &table, const Vector<const int64_t> &ids,
                                           const Matrix<const Real> &values, int64_t each, Real scale)
{
    const int64_t size = table.columns;
    for (int64_t k = 0; k < ids.size; k++) {
        if (k + AHEAD < ids.size) prefetch(table[ids[k + AHEAD]], size);
        const Real *more = values[k / each];
        Real *row = table[ids[k]];
        for (int64_t j = 0; j < size; j++) row[j] += scale * more[j];
    }
}

/* Row ids[k] of table += scale · values[k / each], one after the other: a repeated id counts every time. */
static void add_rows(Matrix<Real> table, Vector<const int64_t> ids, Matrix<const Real> values, int64_t each, double scale)
{
    need(each > 0 && ids.size == values.rows * each && values.columns == table.columns, "a row of values for `each` ids");
    check_rows(ids, table.rows);
    add_to_rows(table, ids, values, each, (Real)scale);
}

enum { NONE = -1 };

/* Which k have the same word: next (n,) leads from one to the next, and `times` (n,) says at the first how many there are; it is
 * 0 or less at the others. Scratch: last (slots,), by hash, slots a power of 2 above n. */
static void link_words(const Vector<const int64_t> &ids, int64_t *next, int64_t *times, const Flat<int64_t> &last)
{
    const uint64_t mask = last.size - 1;
    for (int64_t slot = 0; slot < last.size; slot++) last.data[slot] = NONE;
    for (int64_t k = 0; k < ids.size; k++) {
        uint64_t slot = ((uint64_t)ids[k] * 0x9E3779B97F4A7C15u >> 32) & mask;
        while (last.data[slot] != NONE && ids[last.data[slot]] != ids[k]) slot = (slot + 1) & mask;
        const int64_t before = last.data[slot], first = before == NONE ? k : times[before] > 0 ? before : -times[before];
        next[k] = NONE, last.data[slot] = k;
        if (before != NONE) next[before] = k;
        if (first == k)
            times[k] = 1;
        else
            times[k] = -first, times[first]++;
    }
}

/* What `adagrad_rows` is given. */
struct RowSteps {
    Matrix<Real> table;
    Vector<const int64_t> ids;
    Matrix<const Real> values;
    int64_t each;
    double scale, rate, epsilon;
    Real *squares;
    const int64_t *next, *times;
};

/* The steps of words whose first occurrence has from `begin` up to `end` occurrences of other words, or of its own, before it:
 * an equal share of the work. Scratch: sum and its_squares (size,). */
FOR_THIS_PROCESSOR static void adagrad_by_row(const RowSteps &s, int64_t begin, int64_t end, Real *sum, Real *its_squares)
{
    const int64_t size = s.table.columns, n = s.ids.size;
    for (int64_t k = 0, seen = 0; k < n && seen < end; k++) {
        if (s.times[k] <= 0) continue;
        seen += s.times[k];
        if (seen - s.times[k] < begin) continue;
        if (k + AHEAD < n) {
            prefetch(s.table[s.ids[k + AHEAD]], size);
            __builtin_prefetch(s.squares + s.ids[k + AHEAD]);
        }
        memset(sum, 0, size * sizeof(Real));
        for (int64_t same = k; same != NONE; same = s.next[same]) {
            const Real *more = s.values[same / s.each];
            for (int64_t j = 0; j < size; j++) sum[j] += more[j];
        }
        for (int64_t j = 0; j < size; j++) its_squares[j] = sum[j] * sum[j];
        Real &square = s.squares[s.ids[k]], *row = s.table[s.ids[k]];
        square += (Real)(s.scale * s.scale * total(its_squares, size) / size);
        const Real factor = (Real)(-s.rate * s.scale / (sqrt(square) + s.epsilon));
        for (int64_t j = 0; j < size; j++) row[j] += factor * sum[j];
    }
}

/* One step of row-wise Adagrad: with g the sum of scale · values[k / each] over all k where ids[k] is the same word,
 * squares[word] += mean g², then row −= rate · g / (√squares[word] + epsilon).
 * Scratch: links (2n + slots,), slots a power of 2 above n; sums (2·threads,size). */
static void adagrad_rows(Matrix<Real> table, Vector<const int64_t> ids, Matrix<const Real> values, int64_t each,
                         double scale, Vector<Real> squares, double rate, double epsilon, Vector<int64_t> links,
                         Matrix<Real> sums, int64_t threads)
{
    const int64_t n = ids.size, slots = links.size - 2 * n;
    need(each > 0 && n == values.rows * each && values.columns == table.columns, "a row of values for `each` ids");
    need(squares.size == table.rows, "one of the squares for a row of the table");
    need(slots > n && (slots & (slots - 1)) == 0, "slots a power of 2 above the number of ids");
    need(threads > 0 && sums.rows == 2 * threads && sums.columns == table.columns, "sums (2·threads,size)");
    check_rows(ids, table.rows);
    int64_t *next = links.data, *times = next + n;
    link_words(ids, next, times, {times + n, slots});
    const RowSteps s = {table, ids, values, each, scale, rate, epsilon, squares.data, next, times};
    share_parts(threads, n, table.columns, [=](int64_t begin, int64_t end, int64_t part) {
        adagrad_by_row(s, begin, end, sums[2 * part], sums[2 * part + 1]);
    });
}

FOR_THIS_PROCESSOR static void adagrad_each_row(const Matrix<Real> &table, const int64_t *ids, Real *bias,
                                                Real *squares, const Matrix<const Real> &G, const Real *g, double rate,
                                                double epsilon, int64_t first, int64_t last)
{
    const int64_t size = table.columns;
    for (int64_t k = first; k < last; k++) {
        const int64_t i = ids ? ids[k] : k;
        if (ids && k + AHEAD < last) prefetch(table[ids[k + AHEAD]], size);
        const Real *more = G[k];
        Real *row = table[i];
        const double square = dot_of(more, more, size) + (bias ? (double)g[k] * (double)g[k] : 0);
        squares[i] += (Real)(square / (double)(size + (bias ? 1 : 0)));
        const Real factor = (Real)(-rate / (sqrt((double)squares[i]) + epsilon));
        for (int64_t j = 0; j < size; j++) row[j] += factor * more[j];
        if (bias) bias[i] += factor * g[k];
    }
}

/* One step of row-wise Adagrad for rows of a table (D,size), those of `ids` (n,), each of which is there once, or all of them, and
 * of their biases (D,), unless None, given the gradients G (n,size) and g (n,): squares (D,) += mean of g², then
 * row −= rate · g / (√squares + epsilon). */
static void adagrad_table(Matrix<Real> table, Optional<Vector<const int64_t>> ids, Optional<Vector<Real>> bias,
                          Vector<Real> squares, Matrix<const Real> G, Vector<const Real> g, double rate, double epsilon,
                          int64_t threads)
{
    const int64_t n = ids.data ? ids.size : table.rows;
    need(G.rows == n && G.columns == table.columns && g.size == n, "G (n,size), g (n,)");
    need(squares.size == table.rows && (!bias.data || bias.size == table.rows), "squares, bias (D,)");
    if (ids.data) check_rows(ids, table.rows);
    share_pass(threads, n, table.columns, [=](int64_t first, int64_t last) {
        adagrad_each_row(table, ids.data, bias.data, squares.data, G, g.data, rate, epsilon, first, last);
    });
}
