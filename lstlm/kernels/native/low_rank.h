/* The low-rank step for one target an example, in the letters and the order of reference.py.
 *
 * A tensor (m,d) of a minibatch is kept as (d,m), examples as columns. `partials` (4,m) are ℓ, dq, ds, do. */

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

FOR_THIS_PROCESSOR static void read_outputs(const Layout &at, const Matrix<const Real> &table, const Real *HT, int64_t m,
                                            const Matrix<const Real> &rows, const Real *p, Real *products, double *outputs,
                                            int64_t threads)
{
    const int64_t d = at.d;
    const Real *omega = table[at.omega];
    Real *X = products, *HQ = X + at.HQ * m, *Hw_bar = X + at.Hw_bar * m;
    double *q = outputs, *sum = q + m, *o = sum + m;
    product(threads, "NN", at.recent, m, d, 1, table.data, table.apart, HT, m, 0, HQ, m);
    for (int64_t j = 0; j < d; j++)
        for (int64_t i = 0; i < m; i++) X[j * m + i] = p ? omega[j] * p[i] : omega[j];
    product(threads, "TT", d, m, d, 1, table[at.U], table.apart, rows.data, rows.apart, 1, X, m);
    memset(outputs, 0, 3 * m * sizeof(double));
    for (int64_t j = 0; j < d; j++)
        for (int64_t i = 0; i < m; i++) {
            const double h = HT[j * m + i];
            q[i] += h * HQ[j * m + i];
            o[i] += h * X[j * m + i];
        }
    for (int64_t i = 0; i < m; i++) sum[i] = Hw_bar[i];
}

/* HT (d,m) ← h (m,hidden) and the constant feature; products ← what the table says of it, and X = rows U + p ωᵀ for rows
 * (m,d) of V; outputs (3,m) ← q = diag(H Q Hᵀ), s = H w̄, o = diag(H Xᵀ), which are added up in float64. */
static void low_rank_outputs(Matrix<const Real> table, Strided<const Real> h, Matrix<const Real> rows,
                             Optional<Vector<const Real>> p, Matrix<Real> HT, Matrix<Real> products, Matrix<double> outputs,
                             int64_t threads)
{
    const int64_t m = h.rows;
    const Layout at = check_layout(table, {products.data, products.rows, products.columns, products.apart}, m);
    need(HT.rows == at.d && HT.columns == m && HT.apart == m && h.columns <= at.d, "H (d,m) without gaps, h (m,≤d)");
    need(rows.rows == m && rows.columns == at.d && (!p.data || p.size == m), "rows (m,d), p (m,)");
    need(outputs.rows == 3 && outputs.columns == m && outputs.apart == m, "outputs (3,m) without gaps");
    fill_columns(h, at.d, HT.data);
    read_outputs(at, table, HT.data, m, rows, p.data, products.data, outputs.data, threads);
}

/* partials (4,m) ← ℓ, and dq, ds, do times upstream (m,), given outputs (3,m): q, s, o and target values t (m,). With a
 * prior, p (m,) is √π at the targets and D = Σπ. Returns whether all of them are finite. */
static int64_t losses(Matrix<Real> partials, int64_t loss, double a, double b, double D, Matrix<const double> outputs,
                      Optional<Vector<const Real>> p, Vector<const double> t, Optional<Vector<const double>> upstream)
{
    const int64_t m = t.size;
    need(loss >= SQUARED && loss <= Z_LOSS, "a loss that is known here");
    need(partials.rows == 4 && partials.columns == m && outputs.rows == 3 && outputs.columns == m, "partials (4,m), outputs (3,m)");
    need((!p.data || p.size == m) && (!upstream.data || upstream.size == m), "p and upstream (m,)");
    double total = 0;
    for (int64_t i = 0; i < m; i++) {
        const double q = outputs[0][i], tilt = p.data ? p[i] : 1, weight = upstream.data ? upstream[i] : 1.0 / (double)m;
        const Partials l = partials_of(loss, a, b, D, q, outputs[1][i], outputs[2][i] / tilt, t[i]);
        const Real value = (Real)(p.data ? l.value - 2 * t[i] * log(tilt) : l.value), dq = (Real)(l.dq * weight);
        const Real ds = (Real)(l.ds * weight), dout = (Real)(l.dout / tilt * weight);
        partials[0][i] = value, partials[1][i] = dq, partials[2][i] = ds, partials[3][i] = dout;
        total += q + value + dq + ds + dout;
    }
    return std::isfinite(total);
}

FOR_THIS_PROCESSOR static void go_back(const Layout &at, const Real *w_bar, const Matrix<const Real> &partials, int64_t m,
                                       Real *products, Real *grad_H)
{
    const Real *dq = partials[1], *ds = partials[2], *dout = partials[3];
    Real *X = products, *HQ = X + at.HQ * m, *kept = X + at.steps * m;
    for (int64_t j = 0; j < at.d; j++)
        for (int64_t i = 0; i < m; i++) {
            const Real half = HQ[j * m + i] * dq[i], x = X[j * m + i] * dout[i] + half + w_bar[j] * ds[i];
            X[j * m + i] = x;
            grad_H[j * m + i] = kept[j * m + i] = x + half;
        }
}

/* X ← YW + dq ∘ HQ + ds ⊗ w̄ and ∇H = X + dq ∘ HQ, once to give away and once to keep among the products. */
static void low_rank_backward(Matrix<const Real> table, Matrix<const Real> partials, Matrix<Real> products,
                              Matrix<Real> grad_H)
{
    const int64_t m = partials.columns;
    const Layout at = check_layout(table, {products.data, products.rows, products.columns, products.apart}, m);
    need(partials.rows == 4 && grad_H.rows == at.d && grad_H.columns == m && grad_H.apart == m, "partials (4,m), ∇H (d,m)");
    go_back(at, table[at.w_bar], partials, m, products.data, grad_H.data);
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

/* A (m,m) = HHᵀ B, b = 2η dq; returns trace |A|, trace A, Σ |A_ij A_ji|, which bound its eigenvalues. */
static std::tuple<double, double, double> low_rank_shrink(Matrix<const Real> HT, Vector<const Real> dq, double eta,
                                                          Matrix<Real> A, int64_t threads)
{
    const int64_t d = HT.rows, m = HT.columns, half = m / 2;
    need(dq.size == m && A.rows == m && A.columns == m && A.apart == m && d > 0, "H (d,m), dq (m,), A (m,m) without gaps");
    Real *out = A.data, *corner = out + half * m + half; /* symmetric: a quarter of it is copied */
    product(threads, "TN", m, half, d, 1, HT.data, HT.apart, HT.data, HT.apart, 0, out, m);
    product(threads, "TN", m - half, m - half, d, 1, HT.data + half, HT.apart, HT.data + half, HT.apart, 0, corner, m);
    for (int64_t i = 0; i < half; i++)
        for (int64_t k = half; k < m; k++) out[i * m + k] = out[k * m + i];
    double found[3];
    weigh(m, dq.data, eta, out, found);
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

/* Q, ω, w̄ = base + recent, and Q has the transpose of its recent changes too. */
PART void add_up_gram(const Layout &at, const Matrix<Real> &table, const Real *base)
{
    enum { BLOCK = 16 };
    const int64_t d = at.d, width = table.apart; /* a multiple of BLOCK: beyond d there are zeros */
    const Real *recent = table[at.recent];
    Real *gram = table.data;
    for (int64_t top = 0; top < d; top += BLOCK) {
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
    for (int64_t k = d * width; k < (d + 2) * width; k++) gram[k] = base[k] + recent[k];
}

static Layout check_table(const Matrix<Real> &table, const Matrix<const Real> &base)
{
    const Layout at(table.rows / 4 - 1);
    need(table.rows == at.rows && base.rows == at.d + 2, "table (4d+4,width), base (d+2,width)");
    need(table.columns % 16 == 0 && table.columns >= at.d && table.apart == table.columns, "rows of whole cache lines");
    need(base.columns == table.columns && base.apart == table.apart, "base as wide as the table");
    return at;
}

FOR_THIS_PROCESSOR static void add_up_here(const Layout &at, const Matrix<Real> &table, const Real *base)
{
    add_up_gram(at, table, base);
}

static void add_up(Matrix<Real> table, Matrix<const Real> base) { add_up_here(check_table(table, base), table, base.data); }

/* A minibatch after `backward`, and the learning rate. */
struct Update {
    int64_t m, threads;
    const Real *HT, *dq, *ds, *dout, *p;
    const int64_t *ids;
    Real *products, *A, *N, *C, *BHT;
    double eta, p_norm2;
};

/* N = 2 (X Hᵀ) diag(dq) + ½ YYᵀ + ds ⊗ (Yp + ½ ‖p‖² ds). */
PART void half_gram(const Update &s, int64_t d)
{
    const int64_t m = s.m;
    product(s.threads, "TN", m, m, d, 1, s.products, m, s.HT, m, 0, s.N, m);
    for (int64_t i = 0; i < m; i++) {
        const Real half = s.dout[i] / 2;
        const int64_t id = s.ids[i];
        for (int64_t k = 0; k < m; k++) {
            const Real same = s.ids[k] == id ? half * s.dout[k] : 0;
            const Real sums = s.ds[i] * ((s.p ? s.p[k] : 1) * s.dout[k] + (Real)(s.p_norm2 / 2) * s.ds[k]);
            s.N[i * m + k] = s.N[i * m + k] * 2 * s.dq[k] + same + sums;
        }
    }
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
        w_bar_step[i] = (Real)(b * Hw_bar[i] + eta * ((s.p ? s.p[i] : 1) * s.dout[i] + s.p_norm2 * sum));
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
    add_up_gram(at, table, base);
}

/* The update of the whole table; J (m,d) ← Hp U'⁻¹, of which the rows of V get −η do times theirs. `squares` (3m,m) has A
 * of low_rank_shrink first and (I − A)⁻¹ last, unless `terms` says of how many terms a series gives that. */
static void low_rank_update(Matrix<Real> table, Matrix<const Real> base, Flat<Real> deviation, Matrix<const Real> HT,
                            Matrix<const Real> partials, Vector<const int64_t> ids, Optional<Vector<const Real>> p,
                            double p_norm2, double eta, int64_t terms, Matrix<Real> products, Flat<Real> squares,
                            Matrix<Real> BHT, Matrix<Real> J, int64_t threads)
{
    const int64_t m = HT.columns;
    const Layout at = check_table(table, base);
    check_layout({table.data, table.rows, table.columns, table.apart}, {products.data, products.rows, products.columns, products.apart}, m);
    need(deviation.size == 2 * at.d && HT.rows == at.d && HT.apart == m, "deviation (2,d), H (d,m) without gaps");
    need(partials.rows == 4 && partials.columns == m && ids.size == m && (!p.data || p.size == m), "partials (4,m), ids, p (m,)");
    need(squares.size == 3 * m * m && BHT.rows == at.d && BHT.columns == m && BHT.apart == m, "squares (3m,m), BH (d,m)");
    need(J.rows == m && J.columns == at.d && terms >= 0, "J (m,d)");
    const Update step = {m, threads, HT.data, partials[1], partials[2], partials[3], p.data, ids.data, products.data,
                         squares.data, squares.data + m * m, squares.data + 2 * m * m, BHT.data, eta, p_norm2};
    apply(at, step, terms, table, base.data, deviation.data, J);
}

/* Where each block begins, for spherical/layout.py to be compared with. */
static std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t> layout(int64_t d)
{
    const Layout at(d);
    return {at.Q, at.omega, at.w_bar, at.U_inv_T, at.U, at.recent};
}
