/* Rows that missed repairs: spherical/stabilise/history.py. */

/* v ← v + ((v Xᵀ) ∘ [j > seen]) Y for each v of rows (n,d), over `count` repairs X, Y (count,d).
 * Those that have seen about as many go together, AT_ONCE at a time, from the first repair on that one of them has not
 * seen. Scratch: order (n + count + 2,), spare (AT_ONCE, count + d). */
static void repair_in_order(const Matrix<Real> &rows, const int64_t *seen, const Real *X, const Real *Y, int64_t count,
                            int64_t *order, Real *spare, int64_t threads)
{
    const int64_t n = rows.rows, d = rows.columns;
    int64_t *place = order + n; /* where those that have seen so many begin: sorting by counting */
    memset(place, 0, (count + 2) * sizeof(int64_t));
    for (int64_t i = 0; i < n; i++) place[seen[i] + 1]++;
    for (int64_t k = 0; k < count; k++) place[k + 1] += place[k];
    for (int64_t i = 0; i < n; i++) order[place[seen[i]]++] = i;
    Real *overlaps = spare, *v = spare + AT_ONCE * count;
    for (int64_t start = 0; start < n; start += AT_ONCE) {
        const int64_t some = n - start < AT_ONCE ? n - start : AT_ONCE, first = seen[order[start]], left = count - first;
        if (left == 0) break;
        for (int64_t i = 0; i < some; i++) memcpy(v + i * d, rows[order[start + i]], d * sizeof(Real));
        product(threads, "NT", some, left, d, 1, v, d, X + first * d, d, 0, overlaps, left);
        for (int64_t i = 0; i < some; i++)
            memset(overlaps + i * left, 0, (seen[order[start + i]] - first) * sizeof(Real));
        product(threads, "NN", some, d, left, 1, overlaps, left, Y + first * d, d, 1, v, d);
        for (int64_t i = 0; i < some; i++) memcpy(rows[order[start + i]], v + i * d, d * sizeof(Real));
    }
}

static void check_seen(const int64_t *seen, int64_t n, int64_t count)
{
    for (int64_t i = 0; i < n; i++) need(seen[i] >= 0 && seen[i] <= count, "no row that has seen repairs yet to come");
}

/* The same as a Python function: seen (n,), and the repairs from `first` on of those of X and Y (…,d). */
static void repair_rows(Matrix<Real> rows, Vector<const int64_t> seen, Flat<const Real> X, Flat<const Real> Y, int64_t first,
                        int64_t count, Vector<int64_t> order, Flat<Real> spare, int64_t threads)
{
    const int64_t n = rows.rows, d = rows.columns, all = d ? X.size / d : 0;
    need(X.size == all * d && Y.size == X.size && seen.size == n, "X, Y (…,d), seen (n,)");
    need(first >= 0 && first <= all && count >= 0 && count <= all - first, "repairs that X and Y have");
    need(order.size == n + count + 2 && spare.size == AT_ONCE * (count + d), "order (n + count + 2,), spare (64,count + d)");
    check_seen(seen.data, n, count);
    repair_in_order(rows, seen.data, X.data + first * d, Y.data + first * d, count, order.data, spare.data, threads);
}

/* out (n,d) ← rows of closed segments as they are at the start of the open one, sorted by segment, then by how many of
 * its repairs they have `seen`. X, Y (slots,repairs,d), U (slots,d,d), onward (slots,2,d,d), reached (slots,).
 * Scratch: rows, order and spare as above, copy (n,d). */
static void leave_segments(Matrix<Real> rows, Vector<const int64_t> segment, Vector<const int64_t> seen, int64_t open,
                           Flat<const Real> X, Flat<const Real> Y, Flat<const Real> U, Flat<const Real> onward,
                           Vector<const int64_t> reached, Matrix<Real> out, Vector<int64_t> order, Flat<Real> spare,
                           Matrix<Real> copy, int64_t threads)
{
    const int64_t n = rows.rows, d = rows.columns, slots = reached.size, repairs = slots > 0 && d > 0 ? X.size / (slots * d) : 0;
    need(segment.size == n && seen.size == n && out.rows == n && out.columns == d, "as many of everything as rows");
    need(rows.apart == d && out.apart == d && copy.rows == n && copy.columns == d && copy.apart == d, "rows without gaps");
    need(X.size == slots * repairs * d && Y.size == X.size, "X, Y (slots,repairs,d)");
    need(U.size == slots * d * d && onward.size == 2 * slots * d * d, "U (slots,d,d), onward (slots,2,d,d)");
    need(order.size == n + repairs + 2 && spare.size == AT_ONCE * (repairs + d), "order (n + repairs + 2,) and spare");
    check_seen(seen.data, n, repairs);
    for (int64_t i = 0; i < n; i++)
        need(segment[i] >= 0 && segment[i] < open && (i == 0 || segment[i] >= segment[i - 1]), "segments in order, all closed");
    for (int64_t slot = 0; slot < slots; slot++) need(reached[slot] >= 0, "products from segments that exist");
    for (int64_t start = 0, stop; start < n; start = stop) {
        for (stop = start; stop < n && segment[stop] == segment[start];) stop++;
        int64_t fresh = start;
        while (fresh < stop && seen[fresh] == 0) fresh++;
        const int64_t slot = segment[start] % slots, place = slot * repairs * d;
        const Real *from_start = onward.data + 2 * slot * d * d, *from_end = from_start + d * d;
        repair_in_order({rows[fresh], stop - fresh, d, d}, seen.data + fresh, X.data + place, Y.data + place, repairs,
                        order.data, spare.data, threads);
        product(threads, "NN", fresh - start, d, d, 1, rows[start], d, from_start, d, 0, out[start], d);
        product(threads, "NN", stop - fresh, d, d, 1, rows[fresh], d, from_end, d, 0, out[fresh], d);
        for (int64_t later = reached[slot]; later < open; later++) {
            memcpy(copy.data, out[start], (stop - start) * d * sizeof(Real));
            product(threads, "NN", stop - start, d, d, 1, copy.data, d, U.data + later % slots * d * d, d, 0, out[start], d);
        }
    }
}
