/* The hidden layers Y_l = f(A_l Y_(l−1) + a_l 1ᵀ), of which Y_0 is stored as x (m,inputs): A (units,inputs), Y (units,m). */

/* y (n,) ← f(y + a). */
PART void activate(int64_t activation, int64_t n, Real a, Real *y)
{
    for (int64_t i = 0; i < n; i++) y[i] += a;
    if (activation == TANH)
        for (int64_t i = 0; i < n; i++) y[i] = tanh_of(y[i]);
    else if (activation == RELU)
        for (int64_t i = 0; i < n; i++) y[i] = y[i] > 0 || y[i] != y[i] ? y[i] : 0;
}

/* dz (n,) ← the gradient of what the activation took, given its result y and the gradient of that. */
PART void slope(int64_t activation, int64_t n, const Real *y, const Real *dy, Real *dz)
{
    if (activation == TANH)
        for (int64_t i = 0; i < n; i++) dz[i] = dy[i] * (1 - y[i] * y[i]);
    else if (activation == RELU)
        for (int64_t i = 0; i < n; i++) dz[i] = y[i] <= 0 ? 0 : dy[i];
    else
        memcpy(dz, dy, n * sizeof(Real));
}

enum { PASSES = 4 }; /* that an activation or its slope, and what goes with it, take as long as */

FOR_THIS_PROCESSOR static void activate_rows(int64_t activation, const Real *a, const Matrix<Real> &Y, int64_t first, int64_t last)
{
    for (int64_t j = first; j < last; j++) activate(activation, Y.columns, a[j], Y[j]);
}

FOR_THIS_PROCESSOR static void slope_rows(int64_t activation, const Matrix<const Real> &Y, const Matrix<const Real> &dY,
                                          const Matrix<Real> &dZ, Real *da, int64_t first, int64_t last)
{
    for (int64_t j = first; j < last; j++) {
        slope(activation, Y.columns, Y[j], dY[j], dZ[j]);
        da[j] = (Real)total(dZ[j], Y.columns);
    }
}

static void check_layer(const Matrix<const Real> &A, int64_t inputs, int64_t units, int64_t of_Y, int64_t columns, int64_t m)
{
    need(A.columns == inputs && A.rows == units && A.rows == of_Y && columns == m, "A (units,inputs), a (units,), Y (units,m)");
}

/* Fill Y of all layers. */
static void layers_forward(Matrix<const Real> x, int64_t activation, Several<Matrix<const Real>> A,
                           Several<Vector<const Real>> a, Several<Matrix<Real>> Y, int64_t threads)
{
    const int64_t m = x.rows;
    need(A.count > 0 && a.count == A.count && Y.count == A.count, "as many A, a and Y as layers");
    for (int64_t l = 0, inputs = x.columns; l < A.count; inputs = A[l++].rows)
        check_layer(A[l], inputs, a[l].size, Y[l].rows, Y[l].columns, m);
    for (int64_t l = 0; l < A.count; l++) {
        const Real *below = l ? Y[l - 1].data : x.data;
        product(threads, l ? "NN" : "NT", A[l].rows, m, A[l].columns, 1, A[l].data, A[l].apart, below,
                l ? Y[l - 1].apart : x.apart, 0, Y[l].data, Y[l].apart);
        const Matrix<Real> y = Y[l];
        const Real *bias = a[l].data;
        share_pass(threads, y.rows, PASSES * m, [=](int64_t first, int64_t last) {
            activate_rows(activation, bias, y, first, last);
        });
    }
}

FOR_THIS_PROCESSOR static double sum_rows_up(const Matrix<const Real> &x)
{
    double sum = 0;
    for (int64_t i = 0; i < x.rows; i++) sum += total(x[i], x.columns);
    return sum;
}

/* The sum of x (rows,columns). */
static double sum_all(Matrix<const Real> x) { return sum_rows_up(x); }

/* Given x, Y, and dY (units,m) of the last layer: dA and da of every layer and, unless None, dx (m,inputs).
 * Scratch: twice (largest,m), for the largest number of units. */
static void layers_backward(Matrix<const Real> x, int64_t activation, Several<Matrix<const Real>> A,
                            Several<Matrix<const Real>> Y, Matrix<const Real> dY, Several<Matrix<Real>> dA,
                            Several<Vector<Real>> da, Flat<Real> scratch, Optional<Matrix<Real>> dx, int64_t threads)
{
    const int64_t m = x.rows, count = A.count, half = scratch.size / 2;
    need(count > 0 && m > 0 && Y.count == count && dA.count == count && da.count == count, "as many A, Y, dA and da as layers");
    const Matrix<Real> dZ = {scratch.data, half / m, m, m}, spare = {scratch.data + half, half / m, m, m};
    for (int64_t l = 0, inputs = x.columns; l < count; inputs = A[l++].rows) {
        check_layer(A[l], inputs, da[l].size, Y[l].rows, Y[l].columns, m);
        need(dA[l].rows == A[l].rows && dA[l].columns == inputs, "dA like A");
        need(dZ.rows >= A[l].rows, "room for a layer, twice");
    }
    need(dY.rows == A[count - 1].rows && dY.columns == m, "dY like the last Y");
    need(!dx.data || (dx.rows == m && dx.columns == x.columns), "dx like x");
    for (int64_t l = count - 1; l >= 0; l--) {
        const int64_t units = A[l].rows, inputs = A[l].columns;
        const Matrix<const Real> y = Y[l];
        Real *sums = da[l].data;
        share_pass(threads, units, PASSES * m, [=](int64_t first, int64_t last) {
            slope_rows(activation, y, dY, dZ, sums, first, last);
        });
        if (l > 0) {
            product(threads, "NT", units, inputs, m, 1, dZ.data, dZ.apart, Y[l - 1].data, Y[l - 1].apart, 0, dA[l].data,
                    dA[l].apart);
            product(threads, "TN", inputs, m, units, 1, A[l].data, A[l].apart, dZ.data, dZ.apart, 0, spare.data, spare.apart);
        } else {
            product(threads, "NN", units, inputs, m, 1, dZ.data, dZ.apart, x.data, x.apart, 0, dA[l].data, dA[l].apart);
            if (dx.data)
                product(threads, "TN", m, inputs, units, 1, dZ.data, dZ.apart, A[l].data, A[l].apart, 0, dx.data, dx.apart);
        }
        dY = {spare.data, inputs, m, spare.apart}; /* which is read in full before it is written again */
    }
}

/* The numbers of all parameters, gradients and states, which have to be alike, by at most so many threads:
 * pass(parameter, first, last). */
template <class Pass> void share_parameters(const Several<Flat<Real>> &x, int64_t threads, const Pass &pass)
{
    for (int64_t i = 0; i < x.count; i++)
        share_pass(threads, x[i].size, 4, [&](int64_t first, int64_t last) { pass(i, first, last); });
}

/* One more step for each count. Returns the number of this one, of which they all have to know the same. */
static double count_up(const Several<Flat<float>> &counts)
{
    for (int64_t i = 0; i < counts.count; i++)
        need(counts[i].size == 1 && counts[i].data[0] == counts[0].data[0], "the same number of steps for all parameters");
    for (int64_t i = 0; i < counts.count; i++) counts[i].data[0]++;
    return counts.count ? counts[0].data[0] : 1;
}

template <class T> void check_like(const Several<Flat<Real>> &x, const Several<Flat<T>> &others)
{
    need(others.count == x.count, "as many gradients and states as parameters");
    for (int64_t i = 0; i < x.count; i++) need(others[i].size == x[i].size, "gradients and states like the parameters");
}

FOR_THIS_PROCESSOR static void adagrad_numbers(int64_t first, int64_t last, Real *x, const Real *gradient, Real *squares,
                                               Real rate, Real epsilon)
{
    for (int64_t i = first; i < last; i++) {
        const Real square = squares[i] + gradient[i] * gradient[i];
        squares[i] = square;
        x[i] -= rate * gradient[i] / ((Real)sqrt(square) + epsilon);
    }
}

/* A step of Adagrad for each of x, given gradients g: squares += g², x −= rate · g / (√squares + epsilon). */
static void adagrad(Several<Flat<Real>> x, Several<Flat<const Real>> gradients, Several<Flat<Real>> squares,
                    Several<Flat<float>> counts, double rate, double epsilon, int64_t threads)
{
    check_like(x, gradients), check_like(x, squares);
    count_up(counts);
    share_parameters(x, threads, [&](int64_t i, int64_t first, int64_t last) {
        adagrad_numbers(first, last, x[i].data, gradients[i].data, squares[i].data, (Real)rate, (Real)epsilon);
    });
}

/* The settings of `adam`, as it needs them: 1 − β, of which a float32 of β knows little, rate / (1 − β₁ᵗ) and √(1 − β₂ᵗ). */
struct Adam { Real beta1, rest1, beta2, rest2, rate, root, epsilon; };

FOR_THIS_PROCESSOR static void adam_numbers(int64_t first, int64_t last, Real *x, const Real *gradient, Real *mean,
                                            Real *square, const Adam &s)
{
    for (int64_t i = first; i < last; i++) {
        const Real g = gradient[i], m = s.beta1 * mean[i] + s.rest1 * g, v = s.beta2 * square[i] + s.rest2 * g * g;
        mean[i] = m, square[i] = v;
        x[i] -= s.rate * m / ((Real)sqrt(v) / s.root + s.epsilon);
    }
}

/* A step of Adam, the t-th, for each of x, given gradients g: mean ← β₁ mean + (1 − β₁) g, square ← β₂ square + (1 − β₂) g²,
 * x −= rate · mean / (1 − β₁ᵗ) / (√(square / (1 − β₂ᵗ)) + epsilon). */
static void adam(Several<Flat<Real>> x, Several<Flat<const Real>> gradients, Several<Flat<Real>> means,
                 Several<Flat<Real>> squares, Several<Flat<float>> counts, double rate, double beta1, double beta2,
                 double epsilon, int64_t threads)
{
    check_like(x, gradients), check_like(x, means), check_like(x, squares);
    const double t = count_up(counts);
    const Adam settings = {(Real)beta1, (Real)(1 - beta1), (Real)beta2, (Real)(1 - beta2), (Real)(rate / (1 - pow(beta1, t))),
                           (Real)sqrt(1 - pow(beta2, t)), (Real)epsilon};
    share_parameters(x, threads, [&](int64_t i, int64_t first, int64_t last) {
        adam_numbers(first, last, x[i].data, gradients[i].data, means[i].data, squares[i].data, settings);
    });
}
