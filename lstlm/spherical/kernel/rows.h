/* Rows of a large table by id: rows.py. */

/* Ask for a row of a table (…,size) that will be needed soon. */
static void NAME(prefetch)(const REAL *row, int64_t size)
{
    for (int64_t byte = 0; byte < size * (int64_t)sizeof(REAL); byte += LINE) PREFETCH((const char *)row + byte);
}

/* The sum of x (n,), in float64. */
PART double NAME(total)(const REAL *x, int64_t n)
{
    double lanes[LANES] = {0}, total = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int64_t lane = 0; lane < LANES; lane++) lanes[lane] += x[i + lane];
    for (; i < n; i++) total += x[i];
    for (int64_t lane = 0; lane < LANES; lane++) total += lanes[lane];
    return total;
}

/* What follows reads or writes rows of a table (rows,size) by ids, which are looked at first: the place of one that is no
 * row is returned, with nothing done; −1 where all are. */

/* out (bags,size) ← scale · the sum of the rows ids[i·each], … ids[i·each + each − 1] of table. */
FOR_THIS_PROCESSOR int64_t NAME(sum_rows)(const REAL *table, int64_t rows, int64_t size, const int64_t *ids,
                                          int64_t bags, int64_t each, double scale, REAL *out)
{
    const REAL factor = (REAL)scale;
    const int64_t wrong = outside(ids, bags * each, rows);
    if (wrong >= 0) return wrong;
    for (int64_t i = 0; i < bags; i++)
        for (int64_t k = i * each; k < (i + 1) * each; k++) {
            if (k + AHEAD < bags * each) NAME(prefetch)(table + ids[k + AHEAD] * size, size);
            const REAL *row = table + ids[k] * size;
            REAL *sum = out + i * size;
            if (k == i * each)
                for (int64_t j = 0; j < size; j++) sum[j] = factor * row[j];
            else
                for (int64_t j = 0; j < size; j++) sum[j] += factor * row[j];
        }
    return -1;
}

/* Row ids[k] of table ← values[k], k < n one after the other. */
int64_t NAME(write_rows)(REAL *table, int64_t rows, int64_t size, const int64_t *ids, int64_t n, const REAL *values)
{
    const int64_t wrong = outside(ids, n, rows);
    if (wrong >= 0) return wrong;
    for (int64_t k = 0; k < n; k++) {
        if (k + AHEAD < n) NAME(prefetch)(table + ids[k + AHEAD] * size, size);
        memcpy(table + ids[k] * size, values + k * size, size * sizeof(REAL));
    }
    return -1;
}

/* Row ids[k] of table += scale · change[k / each], k < n one after the other: a repeated id counts every time. */
FOR_THIS_PROCESSOR int64_t NAME(add_rows)(REAL *table, int64_t rows, int64_t size, const int64_t *ids, int64_t n,
                                          const REAL *change, int64_t each, double scale)
{
    const REAL factor = (REAL)scale;
    const int64_t wrong = outside(ids, n, rows);
    if (wrong >= 0) return wrong;
    for (int64_t k = 0; k < n; k++) {
        if (k + AHEAD < n) NAME(prefetch)(table + ids[k + AHEAD] * size, size);
        REAL *row = table + ids[k] * size;
        const REAL *more = change + k / each * size;
        for (int64_t j = 0; j < size; j++) row[j] += factor * more[j];
    }
    return -1;
}

/* One step of row-wise Adagrad: with g the sum of scale · change[k / each] over all k < n where ids[k] is the same word,
 * squares[word] += mean g², then row −= rate · g / (√squares[word] + epsilon).
 *
 * links (2n + slots,) is scratch, slots a power of 2 above n; sums (2,size) too.
 */
FOR_THIS_PROCESSOR int64_t NAME(adagrad_rows)(REAL *table, int64_t rows, int64_t size, const int64_t *ids, int64_t n,
                                              const REAL *change, int64_t each, double scale, REAL *squares,
                                              double rate, double epsilon, int64_t *links, int64_t slots, REAL *sums)
{
    enum { NONE = -1 };
    int64_t *next = links, *earlier = links + n, *last = links + 2 * n; /* of the same word; last: by hash */
    const uint64_t mask = (uint64_t)slots - 1;
    REAL *sum = sums, *its_squares = sums + size;
    const int64_t wrong = outside(ids, n, rows);
    if (wrong >= 0) return wrong;
    for (int64_t slot = 0; slot < slots; slot++) last[slot] = NONE;
    for (int64_t k = 0; k < n; k++) {
        uint64_t slot = ((uint64_t)ids[k] * 0x9E3779B97F4A7C15u >> 32) & mask;
        while (last[slot] != NONE && ids[last[slot]] != ids[k]) slot = (slot + 1) & mask;
        next[k] = NONE;
        earlier[k] = last[slot];
        if (earlier[k] != NONE) next[earlier[k]] = k;
        last[slot] = k;
    }
    for (int64_t k = 0; k < n; k++) {
        if (k + AHEAD < n) {
            NAME(prefetch)(table + ids[k + AHEAD] * size, size);
            PREFETCH(squares + ids[k + AHEAD]);
        }
        if (earlier[k] != NONE) continue;
        memset(sum, 0, size * sizeof(REAL));
        for (int64_t same = k; same != NONE; same = next[same])
            for (int64_t j = 0; j < size; j++) sum[j] += change[same / each * size + j];
        for (int64_t j = 0; j < size; j++) its_squares[j] = sum[j] * sum[j];
        squares[ids[k]] += (REAL)(scale * scale * NAME(total)(its_squares, size) / size);
        const REAL factor = (REAL)(-rate * scale / (sqrt(squares[ids[k]]) + epsilon));
        for (int64_t j = 0; j < size; j++) table[ids[k] * size + j] += factor * sum[j];
    }
    return -1;
}
