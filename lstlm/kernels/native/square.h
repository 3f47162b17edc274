/* The step for m above d, in the letters of square_reference.py: H, ∇H (m,d) here have an example in each row. */

/* H (m,d) ← h (m,hidden), of any strides, and the constant feature, from one example up to another. */
FOR_THIS_PROCESSOR static void fill_rows(const Strided<const Real> &h, const Matrix<Real> &H, int64_t first, int64_t last)
{
    enum { BLOCK = 16 };
    for (int64_t top = first; top < last; top += BLOCK) {
        const int64_t end = top + BLOCK < last ? top + BLOCK : last;
        if (h.along == 1)
            for (int64_t i = top; i < end; i++) memcpy(H[i], h.data + i * h.down, h.columns * sizeof(Real));
        else
            for (int64_t j = 0; j < h.columns; j++)
                for (int64_t i = top; i < end; i++) H[i][j] = h.data[i * h.down + j * h.along];
        for (int64_t i = top; i < end; i++)
            for (int64_t j = h.columns; j < H.columns; j++) H[i][j] = 1;
    }
}

FOR_THIS_PROCESSOR static void multiples(const Real *p, const Real *omega, const Matrix<Real> &W, int64_t first, int64_t last)
{
    for (int64_t w = first; w < last; w++)
        for (int64_t j = 0; j < W.columns; j++) W[w][j] = (p ? p[w] : 1) * omega[j];
}

/* outputs ← q = h·Qh, s = h·w̄ and o = w·h from one example up to another. */
FOR_THIS_PROCESSOR static void outputs_of(const Matrix<Real> &H, const Matrix<Real> &products, const Matrix<Real> &W,
                                          const Bags &bags, double *outputs, int64_t first, int64_t last)
{
    double *q = outputs, *sum = q + bags.m, *o = sum + bags.m;
    for (int64_t i = first; i < last; i++) {
        q[i] = dot_of(H[i], products[i], H.columns);
        sum[i] = products[i][H.columns + 1];
        for (int64_t k = bags.offsets[i]; k < bags.offsets[i + 1]; k++) o[k] = dot_of(W[bags.place[k]], H[i], H.columns);
    }
}

/* H ← h and the constant feature; products (m,d+2) ← HQ | Hω | Hw̄; W (u,d) = VU + p ωᵀ for the rows of V, p (u,);
 * outputs ← q = diag(H Q Hᵀ), s = H w̄, and o = w·h for each pair, which are added up in float64. */
static void square_outputs(Matrix<const Real> table, Strided<const Real> h, Matrix<const Real> rows,
                           Vector<const int64_t> place, Vector<const int64_t> offsets, Optional<Vector<const Real>> p,
                           Matrix<Real> H, Matrix<Real> products, Matrix<Real> W, Vector<double> outputs, int64_t threads)
{
    const Layout at(table.rows / 4 - 1);
    const int64_t d = at.d, m = h.rows, u = rows.rows;
    const Bags bags = check_bags(place, offsets, u);
    need(table.rows == at.rows && table.columns >= d && h.columns <= d && bags.m == m, "table (4d+4,≥d), h (m,≤d)");
    need(H.rows == m && H.columns == d && products.rows == m && products.columns == d + 2, "H (m,d), products (m,d+2)");
    need(rows.columns == d && W.rows == u && W.columns == d && (!p.data || p.size == u), "rows, W (u,d), p (u,)");
    need(outputs.size == 2 * m + bags.n, "outputs (2m+n,)");
    share_pass(threads, m, d, [=](int64_t first, int64_t last) { fill_rows(h, H, first, last); });
    product(threads, "NT", m, d + 2, d, 1, H.data, H.apart, table[at.Q], table.apart, 0, products.data, products.apart);
    share_pass(threads, u, d, [=](int64_t first, int64_t last) { multiples(p.data, table[at.omega], W, first, last); });
    product(threads, "NN", u, d, d, 1, rows.data, rows.apart, table[at.U], table.apart, 1, W.data, W.apart);
    share_pass(threads, m, 2 * d, [=](int64_t first, int64_t last) {
        outputs_of(H, products, W, bags, outputs.data, first, last);
    });
}

FOR_THIS_PROCESSOR static void gradients(const Matrix<const Real> &W, const Bags &bags, const Real *partials,
                                         const Matrix<const Real> &products, const Real *w_bar, const Matrix<Real> &grad_H,
                                         int64_t first, int64_t last)
{
    const Real *dq = partials + bags.m, *ds = dq + bags.m, *dout = ds + bags.m;
    for (int64_t i = first; i < last; i++) {
        const Real *HQ = products[i], twice = 2 * dq[i], sum = ds[i];
        Real *out = grad_H[i];
        for (int64_t j = 0; j < W.columns; j++) out[j] = twice * HQ[j] + sum * w_bar[j];
        for (int64_t k = bags.offsets[i]; k < bags.offsets[i + 1]; k++) {
            const Real *row = W[bags.place[k]], weight = dout[k];
            for (int64_t j = 0; j < W.columns; j++) out[j] += weight * row[j];
        }
    }
}

/* ∇H (m,d) ← 2 dq ∘ HQ + YW + ds ⊗ w̄. */
static void square_backward(Matrix<const Real> table, Matrix<const Real> W, Vector<const int64_t> place,
                            Vector<const int64_t> offsets, Vector<const Real> partials, Matrix<const Real> products,
                            Matrix<Real> grad_H, int64_t threads)
{
    const Layout at(table.rows / 4 - 1);
    const Bags bags = check_bags(place, offsets, W.rows);
    need(table.rows == at.rows && table.columns >= at.d && W.columns == at.d, "table (4d+4,≥d), W (u,d)");
    need(products.rows == bags.m && products.columns >= at.d && partials.size == 3 * bags.m + bags.n, "products (m,d+2)");
    need(grad_H.rows == bags.m && grad_H.columns == at.d, "∇H (m,d)");
    share_pass(threads, bags.m, 2 * at.d, [=](int64_t first, int64_t last) {
        gradients(W, bags, partials.data, products, table[at.w_bar], grad_H, first, last);
    });
}

/* A minibatch on its way through `square_sums`: K = HᵀBH is the product. */
struct Weighing {
    Matrix<const Real> H;
    Bags bags;
    const Real *p, *dq, *ds, *dout;
    Matrix<Real> F;
    Real *Fp, *c;
    Product K;
};

/* F += YᵀH, Fᵀp += HᵀYp and c += Hᵀds over the examples from one up to another, in the columns from `left` up to `right`, none
 * of which depends on others. */
FOR_THIS_PROCESSOR static void weigh_examples(const Weighing &s, int64_t first, int64_t last, int64_t left, int64_t right)
{
    for (int64_t i = first; i < last; i++) {
        const Real *h = s.H[i], ds = s.ds[i];
        Real Yp = 0;
        for (int64_t k = s.bags.offsets[i]; k < s.bags.offsets[i + 1]; k++) {
            Real *row = s.F[s.bags.place[k]];
            const Real weight = s.dout[k];
            Yp += (s.p ? s.p[s.bags.place[k]] : 1) * weight;
            for (int64_t j = left; j < right; j++) row[j] += weight * h[j];
        }
        for (int64_t j = left; j < right; j++) {
            s.Fp[j] += Yp * h[j];
            s.c[j] += ds * h[j];
        }
    }
}

/* A thread's columns of F, Fᵀp and c, and its rows of K, for as many examples at a time as stay in the cache. */
static void share_of_sums(const void *of, int64_t part, int64_t parts)
{
    enum { SOME = 384 };
    Weighing mine = *(const Weighing *)of; /* as in share_pass */
    const int64_t d = mine.H.columns, m = mine.H.rows, lines = (d + LANES - 1) / LANES;
    const int64_t left = part * lines / parts * LANES, end = (part + 1) * lines / parts * LANES, right = end < d ? end : d;
    const int64_t first = edge_of_share(&mine.K, part, parts), last = edge_of_share(&mine.K, part + 1, parts);
    for (int64_t j = left; j < right; j++) mine.Fp[j] = mine.c[j] = 0;
    for (int64_t w = 0; w < mine.F.rows; w++)
        for (int64_t j = left; j < right; j++) mine.F[w][j] = 0;
    for (int64_t i = 0; i < m; i += SOME) {
        const int64_t stop = i + SOME < m ? i + SOME : m;
        weigh_examples(mine, i, stop, left, right);
        mine.K.K = stop - i, mine.K.beta = i > 0, mine.K.A = mine.K.B = mine.H[i], mine.K.weights = mine.dq + i;
        rows_of_product(&mine.K, first, last);
    }
}

FOR_THIS_PROCESSOR static double squares_of(int64_t rows, const Matrix<Real> &x)
{
    double sum = 0;
    for (int64_t i = 0; i < rows; i++) sum += dot_of(x[i], x[i], x.columns);
    return sum;
}

/* F (u,d) = YᵀH, and sums (3d+2,d) ← K = HᵀBH, A = WᵀF, FᵀF, Fᵀp, c = η Hᵀds; b = 2η dq. Returns the sum of the squares
 * of K. */
static double square_sums(Matrix<const Real> H, Matrix<const Real> W, Vector<const int64_t> place,
                        Vector<const int64_t> offsets, Optional<Vector<const Real>> p, Vector<const Real> partials,
                        double eta, Matrix<Real> F, Matrix<Real> sums, int64_t threads)
{
    const int64_t d = H.columns, m = H.rows, u = W.rows, apart = sums.apart;
    const Bags bags = check_bags(place, offsets, u);
    need(bags.m == m && partials.size == 3 * m + bags.n && W.columns == d, "a bag for an example, partials (3m+n,), W (u,d)");
    need(F.rows == u && F.columns == d && sums.rows == 3 * d + 2 && sums.columns == d, "F (u,d), sums (3d+2,d)");
    need(!p.data || p.size == u, "p (u,)");
    const Real *dq = partials.data + m;
    const Product K = {d, d, 0, (Real)(2 * eta), 0, H.data, H.data, sums.data, 1, H.apart, H.apart, 1, apart, true};
    const Weighing s = {H, bags, p.data, dq, dq + m, dq + 2 * m, F, sums[3 * d], sums[3 * d + 1], K};
    const int64_t most = 1 + m * d * d / WORTH_A_THREAD;
    if (threads > 1 && most > 1)
        Threads::ours().share(threads < most ? threads : most, share_of_sums, &s);
    else
        share_of_sums(&s, 0, 1);
    mirror(K, threads);
    for (int64_t j = 0; j < d; j++) s.c[j] *= (Real)eta;
    product(threads, "TN", d, d, u, 1, W.data, W.apart, F.data, F.apart, 0, sums[d], apart);
    symmetric_product(threads, d, u, 1, F.data, F.apart, F.data, F.apart, 0, sums[2 * d], apart);
    return squares_of(d, sums);
}

/* sum (d,d) ← K + K² + … + Kⁿ, n = `terms` of 1, 2, 4, …; K (d,d) is symmetric, and so is every product of its powers.
 * Scratch: power and spare (d,d); all of them without gaps. */
static void symmetric_series(Matrix<const Real> K, int64_t terms, Flat<Real> sum, Flat<Real> power, Flat<Real> spare,
                             int64_t threads)
{
    const int64_t d = K.rows, size = d * d;
    need(K.columns == d && sum.size == size && power.size == size && spare.size == size, "K and its powers (d,d)");
    share_pass(threads, d, d, [=](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; i++)
            memcpy(sum.data + i * d, K[i], d * sizeof(Real)), memcpy(power.data + i * d, K[i], d * sizeof(Real));
    });
    Real *now = power.data, *next = spare.data; /* Kⁿ, while the sum is K + … + Kⁿ */
    for (int64_t n = 1; n < terms; n *= 2) {
        symmetric_product(threads, d, d, 1, sum.data, d, now, d, 0, next, d);
        share_pass(threads, size, 1, [=](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; i++) sum.data[i] += next[i];
        });
        if (2 * n >= terms) break;
        if (n > 1) symmetric_product(threads, d, d, 1, now, d, now, d, 0, next, d); /* else that is K² already */
        Real *other = now;
        now = next, next = other;
    }
}

/* What `square_update` is given and makes room for: QK (d+2,d) of Q, ω and w̄, then steps of U⁻ᵀ and U (d,d). */
struct SquareUpdate {
    const Real *K, *A, *FTF, *Fp, *c;
    int64_t apart;
    double eta, p_norm2;
};

/* QK ← G = ½Q − S and recent −= S − ½η² FᵀF + z cᵀ − ½‖p‖² ccᵀ, S = ½QK + ηA, z = w̄ − Kw̄ − η Fᵀp, in rows [first, last). */
FOR_THIS_PROCESSOR static void add_to_recent(const Layout &at, const Matrix<Real> &table, const SquareUpdate &s,
                                             const Matrix<Real> &QK, int64_t first, int64_t last)
{
    const int64_t d = at.d;
    const Real eta = (Real)s.eta, half_square = eta * eta / 2, p_norm2 = (Real)s.p_norm2;
    for (int64_t i = first; i < last; i++) {
        const Real w_bar_step = QK[d + 1][i] + eta * s.Fp[i];
        const Real z = table[at.w_bar][i] - w_bar_step - p_norm2 / 2 * s.c[i], *Q = table[i];
        const Real *A = s.A + i * s.apart, *FTF = s.FTF + i * s.apart;
        Real *G = QK[i], *recent = table[at.recent + i];
        for (int64_t j = 0; j < d; j++) {
            const Real S = G[j] / 2 + eta * A[j];
            recent[j] -= S - half_square * FTF[j] + z * s.c[j];
            G[j] = Q[j] / 2 - S;
        }
        table[at.recent + d][i] -= QK[d][i] + s.c[i];
        table[at.recent + d + 1][i] -= w_bar_step + p_norm2 * s.c[i];
    }
}

/* F (d,d), whose diagonal is 1 + deviation, += times · step, in rows [first, last). */
FOR_THIS_PROCESSOR static void move_rows(const Matrix<Real> &F, Real *deviation, Real times, const Matrix<Real> &step,
                                         int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++) {
        deviation[i] += times * step[i][i];
        for (int64_t j = 0; j < F.rows; j++) F[i][j] += times * step[i][j];
        F[i][i] = deviation[i] + 1;
    }
}

static void move_frame(const Matrix<Real> &F, Real *deviation, Real times, const Matrix<Real> &step, int64_t threads)
{
    share_pass(threads, F.rows, F.rows, [=](int64_t first, int64_t last) { move_rows(F, deviation, times, step, first, last); });
}

/* The update of the whole table, given the sums and S = T⁻¹ − I (d,d), T = I − K. Scratch: room (d+2,d). */
static void square_update(Matrix<Real> table, Matrix<const Real> base, Flat<Real> deviation, Matrix<const Real> sums,
                          Strided<const Real> S, double p_norm2, double eta, Matrix<Real> room, int64_t threads)
{
    const Layout at = check_table(table, base);
    const int64_t d = at.d, width = table.apart;
    need(sums.rows == 3 * d + 2 && sums.columns == d && S.rows == d && S.columns == d, "sums (3d+2,d), S (d,d)");
    need(deviation.size == 2 * d && room.rows == d + 2 && room.columns == d, "deviation (2,d), room (d+2,d)");
    const SquareUpdate s = {sums[0], sums[d], sums[2 * d], sums[3 * d], sums[3 * d + 1], sums.apart, eta, p_norm2};
    product(threads, "NN", d + 2, d, d, 1, table.data, width, s.K, s.apart, 0, room.data, room.apart);
    share_pass(threads, d, d, [=](int64_t first, int64_t last) { add_to_recent(at, table, s, room, first, last); });
    product(threads, "NN", d, d, d, -1, s.K, s.apart, room.data, room.apart, 1, table[at.recent], width); /* − KG */
    product(threads, "NN", d, d, d, 1, table[at.U], width, s.K, s.apart, 0, room.data, room.apart);
    move_frame({table[at.U], d, d, width}, deviation.data + d, -1, room, threads);
    multiply({d, d, d, 1, 0, table[at.U_inv_T], S.data, room.data, width, 1, S.along, S.down, room.apart}, threads);
    move_frame({table[at.U_inv_T], d, d, width}, deviation.data, 1, room, threads);
    add_up_gram(at, table, base.data, threads);
}
