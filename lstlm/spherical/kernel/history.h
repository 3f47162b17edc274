/* Rows that missed repairs: history.py. */

/* v ← v + ((v Xᵀ) ∘ [j > seen]) Y for each v of rows (n,d), over `count` repairs X, Y (count,d); returns whether `seen` is
 * out of its range, with nothing done.
 * Those that have seen about as many go together, AT_ONCE at a time, from the first repair on that one of them has not
 * seen. Scratch: order (n + count + 2,), spare (AT_ONCE, count + d). */
FOR_THIS_PROCESSOR int64_t NAME(repair_rows)(const NAME(Products) *by, int64_t d, REAL *rows, const int64_t *seen, int64_t n,
                                             const REAL *X, const REAL *Y, int64_t count, int64_t *order, REAL *spare)
{
    int64_t *place = order + n; /* where those that have seen so many begin: sorting by counting */
    memset(place, 0, (count + 2) * sizeof(int64_t));
    for (int64_t i = 0; i < n; i++) {
        if (seen[i] < 0 || seen[i] > count) return 1;
        place[seen[i] + 1]++;
    }
    for (int64_t k = 0; k < count; k++) place[k + 1] += place[k];
    for (int64_t i = 0; i < n; i++) order[place[seen[i]]++] = i;
    REAL *overlaps = spare, *v = spare + AT_ONCE * count;
    for (int64_t start = 0; start < n; start += AT_ONCE) {
        const int64_t some = n - start < AT_ONCE ? n - start : AT_ONCE, first = seen[order[start]], left = count - first;
        if (left == 0) break;
        for (int64_t i = 0; i < some; i++) memcpy(v + i * d, rows + order[start + i] * d, d * sizeof(REAL));
        NAME(product)(by, "NT", some, left, d, 1, v, d, X + first * d, d, 0, overlaps, left);
        for (int64_t i = 0; i < some; i++)
            memset(overlaps + i * left, 0, (seen[order[start + i]] - first) * sizeof(REAL));
        NAME(product)(by, "NN", some, d, left, 1, overlaps, left, Y + first * d, d, 1, v, d);
        for (int64_t i = 0; i < some; i++) memcpy(rows + order[start + i] * d, v + i * d, d * sizeof(REAL));
    }
    return 0;
}

/* The closed and the open segments of history.py: X, Y (slots,repairs,d), U (slots,d,d), onward (slots,2,d,d). */
typedef struct {
    const NAME(Products) *by;
    int64_t d, slots, repairs, open;
    const REAL *X, *Y, *U, *onward;
    const int64_t *reached;
} NAME(Segments);

/* out (n,d) ← rows of closed segments as they are at the start of the open one. They are sorted by segment, then by
 * how many of its repairs they have seen. Scratch: rows, order and spare as in repair_rows, copy (n,d). */
void NAME(leave_segments)(const NAME(Segments) *s, REAL *rows, const int64_t *segment, const int64_t *seen, int64_t n,
                          REAL *out, int64_t *order, REAL *spare, REAL *copy)
{
    const int64_t d = s->d;
    for (int64_t start = 0, stop; start < n; start = stop) {
        for (stop = start; stop < n && segment[stop] == segment[start];) stop++;
        int64_t fresh = start;
        while (fresh < stop && seen[fresh] == 0) fresh++;
        const int64_t slot = segment[start] % s->slots, place = slot * s->repairs * d;
        const REAL *from_start = s->onward + 2 * slot * d * d, *from_end = from_start + d * d;
        NAME(repair_rows)(s->by, d, rows + fresh * d, seen + fresh, stop - fresh, s->X + place, s->Y + place,
                          s->repairs, order, spare);
        NAME(product)(s->by, "NN", fresh - start, d, d, 1, rows + start * d, d, from_start, d, 0, out + start * d, d);
        NAME(product)(s->by, "NN", stop - fresh, d, d, 1, rows + fresh * d, d, from_end, d, 0, out + fresh * d, d);
        for (int64_t later = s->reached[slot]; later < s->open; later++) {
            memcpy(copy, out + start * d, (stop - start) * d * sizeof(REAL));
            NAME(product)(s->by, "NN", stop - start, d, d, 1, copy, d, s->U + later % s->slots * d * d, d, 0,
                          out + start * d, d);
        }
    }
}
