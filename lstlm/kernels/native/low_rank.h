/* The low-rank step, in the letters and the order of reference.py.
 *
 * A tensor (m,d) of a minibatch is kept as (d,m), examples as columns. `outputs` (2m+n,) are q, s of the examples and o of the
 * pairs, `partials` (3m+n,) ℓ, dq, ds of the examples and do of the pairs; rows (u,d) of V are those of the words. */

/* Where the blocks of `table` begin, and those of `products`, which has X before them: spherical/layout.py. */
struct Layout {
    int64_t d, Q = 0, omega = d, w_bar = d + 1, U_inv_T = d + 2, U = 2 * d + 2, recent = 3 * d + 2, rows = 4 * d + 4;
    int64_t X = 0, HQ = d, H_omega = 2 * d, Hw_bar = 2 * d + 1, HU_inv = 2 * d + 2, HU = 3 * d + 2, steps = 4 * d + 2;
    explicit Layout(int64_t d) : d(d) {}
};

static Layout check_layout(const Matrix<const Real> &table, const Matrix<const Real> &products, int64_t m)
{
    const Layout at(table.rows / 4 - 1);
    need(table.rows == at.rows && table.columns >= at.d, "table (4d+4,≥d)");
    need(products.rows == at.d + at.rows && products.columns == m && products.apart == m, "products (5d+4,m) without gaps");
    return at;
}

FOR_THIS_PROCESSOR static void fill_columns(const Strided<const Real> &h, int64_t d, Real *HT)
{
    enum { BLOCK = 16 };
    const int64_t m = h.rows, hidden = h.columns;
    if (h.down == 1)
        for (int64_t j = 0; j < hidden; j++) memcpy(HT + j * m, h.data + j * h.along, m * sizeof(Real));
    else
        for (int64_t top = 0; top < hidden; top += BLOCK)
            for (int64_t i = 0; i < m; i++)
                for (int64_t j = top; j < hidden && j < top + BLOCK; j++) HT[j * m + i] = h.data[i * h.down + j * h.along];
    for (int64_t k = hidden * m; k < d * m; k++) HT[k] = 1;
}

/* out (columns,rows) ← the transpose of x (rows,columns), both without gaps. */
PART void turn(const Real *x, int64_t rows, int64_t columns, Real *out)
{
    enum { BLOCK = 16 };
    for (int64_t top = 0; top < rows; top += BLOCK)
        for (int64_t k = 0; k < columns; k++)
            for (int64_t j = top; j < rows && j < top + BLOCK; j++) out[k * rows + j] = x[j * columns + k];
}

FOR_THIS_PROCESSOR static void read_outputs(const Layout &at, const Matrix<const Real> &table, const Real *HT,
                                            const Matrix<const Real> &rows, const Bags &bags, const Real *p, Real *products,
                                            double *outputs, int64_t threads)
{
    const int64_t d = at.d, m = bags.m;
    Real *X = products, *HQ = X + at.HQ * m, *H_omega = X + at.H_omega * m, *Hw_bar = X + at.Hw_bar * m;
    double *q = outputs, *sum = q + m, *o = sum + m;
    product(threads, "NN", at.recent, m, d, 1, table.data, table.apart, HT, m, 0, HQ, m);
    memset(q, 0, m * sizeof(double));
    for (int64_t j = 0; j < d; j++)
        for (int64_t i = 0; i < m; i++) q[i] += (double)HT[j * m + i] * HQ[j * m + i];
    for (int64_t i = 0; i < m; i++) sum[i] = Hw_bar[i];
    turn(X + at.HU * m, d, m, X); /* an example's after each other; X is not needed before `backward` */
    dot_pairs(rows, bags, {X, m, d, d}, o);
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = bags.offsets[i]; k < bags.offsets[i + 1]; k++) o[k] += (double)(p ? p[k] : 1) * H_omega[i];
}

/* HT (d,m) ← h (m,hidden) and the constant feature; products ← what the table says of it; outputs ← q = diag(H Q Hᵀ),
 * s = H w̄, and o = v·UHᵀ + p ω·h for each pair, which are added up in float64; p (n,). */
static void low_rank_outputs(Matrix<const Real> table, Strided<const Real> h, Matrix<const Real> rows,
                             Vector<const int64_t> place, Vector<const int64_t> offsets, Optional<Vector<const Real>> p,
                             Matrix<Real> HT, Matrix<Real> products, Vector<double> outputs, int64_t threads)
{
    const int64_t m = h.rows;
    const Layout at = check_layout(table, {products.data, products.rows, products.columns, products.apart}, m);
    const Bags bags = check_bags(place, offsets, rows.rows);
    need(HT.rows == at.d && HT.columns == m && HT.apart == m && h.columns <= at.d, "H (d,m) without gaps, h (m,≤d)");
    need(bags.m == m && rows.columns == at.d && (!p.data || p.size == bags.n), "a bag for an example, rows (u,d), p (n,)");
    need(outputs.size == 2 * m + bags.n, "outputs (2m+n,)");
    fill_columns(h, at.d, HT.data);
    read_outputs(at, table, HT.data, rows, bags, p.data, products.data, outputs.data, threads);
}

FOR_THIS_PROCESSOR static void go_back(const Layout &at, const Matrix<const Real> &table, const Matrix<const Real> &rows,
                                       const Bags &bags, const Real *p, const Real *partials, Real *products, Real *grad_H,
                                       int64_t threads)
{
    const int64_t d = at.d, m = bags.m;
    const Real *dq = partials + m, *ds = dq + m, *dout = ds + m, *w_bar = table[at.w_bar], *omega = table[at.omega];
    Real *X = products, *HQ = X + at.HQ * m, *kept = X + at.steps * m, *Yp = kept + (d + 1) * m;
    for (int64_t i = 0; i < m; i++) {
        double sum = 0;
        for (int64_t k = bags.offsets[i]; k < bags.offsets[i + 1]; k++) sum += (double)(p ? p[k] : 1) * dout[k];
        Yp[i] = (Real)sum;
    }
    for (int64_t j = 0; j < d; j++)
        for (int64_t i = 0; i < m; i++) X[j * m + i] = omega[j] * Yp[i];
    sum_pairs(rows, bags, dout, {grad_H, m, d, d}); /* YV, where ∇H will be */
    product(threads, "TT", d, m, d, 1, table[at.U], table.apart, grad_H, d, 1, X, m);
    for (int64_t j = 0; j < d; j++)
        for (int64_t i = 0; i < m; i++) {
            const Real half = HQ[j * m + i] * dq[i], x = X[j * m + i] + half + w_bar[j] * ds[i];
            X[j * m + i] = x;
            grad_H[j * m + i] = kept[j * m + i] = x + half;
        }
}

/* X ← YW + dq ∘ HQ + ds ⊗ w̄ and ∇H = X + dq ∘ HQ, once to give away and once to keep among the products, as Yp is. */
static void low_rank_backward(Matrix<const Real> table, Matrix<const Real> rows, Vector<const int64_t> place,
                              Vector<const int64_t> offsets, Optional<Vector<const Real>> p, Vector<const Real> partials,
                              Matrix<Real> products, Matrix<Real> grad_H, int64_t threads)
{
    const Bags bags = check_bags(place, offsets, rows.rows);
    const Layout at = check_layout(table, {products.data, products.rows, products.columns, products.apart}, bags.m);
    need(partials.size == 3 * bags.m + bags.n && rows.columns == at.d, "partials (3m+n,), rows (u,d)");
    need(grad_H.rows == at.d && grad_H.columns == bags.m && grad_H.apart == bags.m, "∇H (d,m) without gaps");
    need(!p.data || p.size == bags.n, "p (n,)");
    go_back(at, table, rows, bags, p.data, partials.data, products.data, grad_H.data, threads);
}

FOR_THIS_PROCESSOR static void weigh(int64_t m, const Real *dq, double eta, Real *A, double found[3])
{
    double absolute = 0, trace = 0, squares = 0;
    for (int64_t i = 0; i < m; i++) {
        double row = 0; /* Σ_k G_ik² |b_i b_k| = Σ_k |A_ik A_ki| */
        for (int64_t k = 0; k < m; k++) {
            const double g = A[i * m + k], b = 2 * eta * dq[k];
            row += g * g * fabs(b);
            A[i * m + k] = (Real)(g * b);
        }
        squares += row * fabs(2 * eta * dq[i]);
        absolute += fabs(A[i * m + i]);
        trace += A[i * m + i];
    }
    found[0] = absolute, found[1] = trace, found[2] = squares;
}

/* A (m,m), the first of `squares` (3m,m), = HHᵀ B, b = 2η dq; returns trace |A|, trace A, Σ |A_ij A_ji|, which bound its eigenvalues. */
static std::tuple<double, double, double> low_rank_shrink(Matrix<const Real> HT, Vector<const Real> dq, double eta,
                                                          Flat<Real> squares, int64_t threads)
{
    const int64_t d = HT.rows, m = HT.columns;
    need(dq.size == m && squares.size == 3 * m * m && d > 0, "H (d,m), dq (m,), squares (3m,m)");
    symmetric_product(threads, m, d, 1, HT.data, HT.apart, HT.data, HT.apart, 0, squares.data, m);
    double found[3];
    weigh(m, dq.data, eta, squares.data, found);
    return {found[0], found[1], found[2]};
}

/* sum = I + A + A² + … of at least `terms` powers of A, which becomes scratch, as spare does. */
PART void series(int64_t m, int64_t terms, Real *power, Real *spare, Real *sum, int64_t threads)
{
    memcpy(sum, power, m * m * sizeof(Real));
    for (int64_t n = 1; n < terms; n *= 2) { /* sum = A + … + Aⁿ, power = Aⁿ */
        product(threads, "NN", m, m, m, 1, sum, m, power, m, 0, spare, m);
        for (int64_t i = 0; i < m * m; i++) sum[i] += spare[i];
        if (2 * n >= terms) break;
        if (n > 1) product(threads, "NN", m, m, m, 1, power, m, power, m, 0, spare, m); /* else spare is A² already */
        Real *other = power;
        power = spare, spare = other;
    }
    for (int64_t i = 0; i < m; i++) sum[i * m + i] += 1;
}

/* Q = base + recent + the transpose of its recent changes, in rows of blocks from one up to another. */
enum { BLOCK_OF_Q = 16 };
FOR_THIS_PROCESSOR static void add_up_blocks(const Layout &at, const Matrix<Real> &table, const Real *base, int64_t first,
                                             int64_t last)
{
    enum { BLOCK = BLOCK_OF_Q };
    const int64_t d = at.d, width = table.apart; /* a multiple of BLOCK: beyond d there are zeros */
    const Real *recent = table[at.recent];
    Real *gram = table.data;
    for (int64_t top = first * BLOCK; top < d && top < last * BLOCK; top += BLOCK) {
        const int64_t height = d - top < BLOCK ? d - top : BLOCK;
        for (int64_t left = 0; left < d; left += BLOCK) {
            const int64_t breadth = d - left < BLOCK ? d - left : BLOCK;
            Real turned[BLOCK][BLOCK] = {{0}}; /* of the block on the other side of the diagonal */
            for (int64_t k = 0; k < breadth; k++)
                for (int64_t j = 0; j < BLOCK; j++) turned[j][k] = recent[(left + k) * width + top + j];
            for (int64_t j = 0; j < height; j++) {
                const int64_t at_row = (top + j) * width + left;
                for (int64_t k = 0; k < BLOCK; k++)
                    gram[at_row + k] = base[at_row + k] + recent[at_row + k] + turned[j][k];
            }
        }
    }
}

/* Q, ω, w̄ = base + recent, and Q has the transpose of its recent changes too. */
static void add_up_gram(const Layout &at, const Matrix<Real> &table, const Real *base, int64_t threads)
{
    const int64_t d = at.d, width = table.apart;
    share_pass(threads, (d + BLOCK_OF_Q - 1) / BLOCK_OF_Q, BLOCK_OF_Q * width, [=](int64_t first, int64_t last) {
        add_up_blocks(at, table, base, first, last);
    });
    for (int64_t k = d * width; k < (d + 2) * width; k++) table.data[k] = base[k] + table[at.recent][k];
}

static Layout check_table(const Matrix<Real> &table, const Matrix<const Real> &base)
{
    const Layout at(table.rows / 4 - 1);
    need(table.rows == at.rows && base.rows == at.d + 2, "table (4d+4,width), base (d+2,width)");
    need(table.columns % 16 == 0 && table.columns >= at.d && table.apart == table.columns, "rows of whole cache lines");
    need(base.columns == table.columns && base.apart == table.apart, "base as wide as the table");
    return at;
}

static void add_up(Matrix<Real> table, Matrix<const Real> base, int64_t threads)
{
    add_up_gram(check_table(table, base), table, base.data, threads);
}

/* A minibatch after `backward`, and the learning rate. */
struct Update {
    int64_t m, threads;
    const Real *HT, *dq, *ds, *dout, *Yp;
    Bags bags;
    int64_t *links;
    Real *products, *A, *N, *C, *BHT;
    double eta, p_norm2;
};

/* N = 2 (X Hᵀ) diag(dq) + ½ YYᵀ + ds ⊗ (Yp + ½ ‖p‖² ds). */
PART void half_gram(const Update &s, int64_t d)
{
    const int64_t m = s.m;
    product(s.threads, "TN", m, m, d, 1, s.products, m, s.HT, m, 0, s.N, m);
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = 0; k < m; k++)
            s.N[i * m + k] = s.N[i * m + k] * 2 * s.dq[k] + s.ds[i] * (s.Yp[k] + (Real)(s.p_norm2 / 2) * s.ds[k]);
    add_half_gram(s.bags, s.dout, s.N, s.links);
}

FOR_THIS_PROCESSOR static void apply(const Layout &at, const Update &s, int64_t terms, const Matrix<Real> &table,
                                     const Real *base, Real *deviation, const Matrix<Real> &J)
{
    const int64_t d = at.d, m = s.m, width = table.apart;
    const double eta = s.eta;
    Real *H_omega = s.products + at.H_omega * m, *Hw_bar = s.products + at.Hw_bar * m, *HU = s.products + at.HU * m;
    Real *R = s.products + at.steps * m, *U_inv_T = table[at.U_inv_T], *U = table[at.U];
    if (terms) series(m, terms, s.A, s.N, s.C, s.threads);
    half_gram(s, d);
    product(s.threads, "NT", d, m, m, -eta * eta, s.HT, m, s.N, m, eta, R, m);
    Real *omega_step = R + d * m, *w_bar_step = omega_step + m;
    for (int64_t i = 0; i < m; i++) {
        const double b = 2 * eta * s.dq[i], sum = s.ds[i];
        omega_step[i] = (Real)(b * H_omega[i] + eta * sum);
        w_bar_step[i] = (Real)(b * Hw_bar[i] + eta * (s.Yp[i] + s.p_norm2 * sum)); /* over Yp */
    }
    product(s.threads, "NT", m, d, m, 1, s.C, m, s.products + at.HU_inv * m, m, 0, J.data, J.apart);
    for (int64_t j = 0; j < d; j++)
        for (int64_t i = 0; i < m; i++) {
            const Real b = (Real)(2 * eta) * s.dq[i];
            s.BHT[j * m + i] = s.HT[j * m + i] * b;
            HU[j * m + i] *= b;
        }
    /* the diagonals without their 1, as spherical/state.py explains, while changes are added */
    for (int64_t j = 0; j < d; j++) {
        U_inv_T[j * (width + 1)] = deviation[j];
        U[j * (width + 1)] = deviation[d + j];
    }
    product(s.threads, "TT", d, d, m, 1, J.data, J.apart, s.BHT, m, 1, U_inv_T, width);
    product(s.threads, "NT", 2 * d + 2, d, m, -1, HU, m, s.HT, m, 1, U, width);
    for (int64_t j = 0; j < d; j++) {
        deviation[j] = U_inv_T[j * (width + 1)]++;
        deviation[d + j] = U[j * (width + 1)]++;
    }
    add_up_gram(at, table, base, s.threads);
}

/* The update of the whole table; J (m,d) ← H U'⁻¹, of which V gets −η YᵀJ. `squares` (3m,m) has A of low_rank_shrink first
 * and (I − A)⁻¹ last, unless `terms` says of how many terms a series gives that. Scratch: links (n+u+1,). */
static void low_rank_update(Matrix<Real> table, Matrix<const Real> base, Flat<Real> deviation, Matrix<const Real> HT,
                            Vector<const Real> partials, Vector<const int64_t> place, Vector<const int64_t> offsets,
                            Vector<int64_t> links, double p_norm2, double eta, int64_t terms, Matrix<Real> products,
                            Flat<Real> squares, Matrix<Real> BHT, Matrix<Real> J, int64_t threads)
{
    const int64_t m = HT.columns;
    const Layout at = check_table(table, base);
    check_layout({table.data, table.rows, table.columns, table.apart}, {products.data, products.rows, products.columns, products.apart}, m);
    need(deviation.size == 2 * at.d && HT.rows == at.d && HT.apart == m, "deviation (2,d), H (d,m) without gaps");
    const Bags bags = check_bags(place, offsets, links.size - place.size - 1);
    need(bags.m == m && partials.size == 3 * m + bags.n && m < 1 << 24, "a bag for an example, partials (3m+n,)");
    need(squares.size == 3 * m * m && BHT.rows == at.d && BHT.columns == m && BHT.apart == m, "squares (3m,m), BH (d,m)");
    need(J.rows == m && J.columns == at.d && terms >= 0, "J (m,d)");
    const Real *dq = partials.data + m, *Yp = products[at.steps + at.d + 1];
    const Update step = {m, threads, HT.data, dq, dq + m, dq + 2 * m, Yp, bags, links.data, products.data, squares.data,
                         squares.data + m * m, squares.data + 2 * m * m, BHT.data, eta, p_norm2};
    apply(at, step, terms, table, base.data, deviation.data, J);
}

/* Where each block begins, for spherical/layout.py to be compared with. */
static std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t> layout(int64_t d)
{
    const Layout at(d);
    return {at.Q, at.omega, at.w_bar, at.U_inv_T, at.U, at.recent};
}
