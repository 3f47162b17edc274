/* The hidden layers: layers.py. */

/* The activations of hidden layers, by number. */
PART REAL NAME(activated)(int64_t activation, REAL x)
{
    if (activation == RELU) return x > 0 || x != x ? x : 0;
    return activation == TANH ? NAME(tanh)(x) : x;
}

/* The gradient of what an activation took, given its result and the gradient of that. */
PART REAL NAME(sloped)(int64_t activation, REAL y, REAL dy)
{
    if (activation == RELU) return y <= 0 ? 0 : dy;
    return activation == TANH ? dy * (1 - y * y) : dy;
}

/* Y (units,m) ← f(A X + a 1ᵀ) for A (units,inputs), and X (inputs,m), or stored as (m,inputs) where `by_rows`. */
FOR_THIS_PROCESSOR void NAME(layer_forward)(NAME(Gemm) *gemm, int64_t activation, int64_t units, int64_t inputs,
                                            int64_t m, const REAL *A, const REAL *a, const REAL *X, int64_t by_rows,
                                            REAL *Y)
{
    NAME(product)(gemm, by_rows ? "NT" : "NN", units, m, inputs, 1, A, inputs, X, by_rows ? inputs : m, 0, Y, m);
    for (int64_t j = 0; j < units; j++)
        switch (activation) { /* outside the loop over examples, which is then one of vectors */
        case TANH: for (int64_t i = 0; i < m; i++) Y[j * m + i] = NAME(activated)(TANH, Y[j * m + i] + a[j]); break;
        case RELU: for (int64_t i = 0; i < m; i++) Y[j * m + i] = NAME(activated)(RELU, Y[j * m + i] + a[j]); break;
        default: for (int64_t i = 0; i < m; i++) Y[j * m + i] += a[j];
        }
}

/* Given the gradient dY of Y = f(Z), Z = A X + a 1ᵀ: those of Z, A, a and, unless NULL, of X, stored as X is. */
FOR_THIS_PROCESSOR void NAME(layer_backward)(NAME(Gemm) *gemm, int64_t activation, int64_t units, int64_t inputs,
                                             int64_t m, const REAL *A, const REAL *X, int64_t by_rows, const REAL *Y,
                                             const REAL *dY, REAL *dZ, REAL *dA, REAL *da, REAL *dX)
{
    for (int64_t j = 0; j < units; j++) {
        const REAL *y = Y + j * m, *dy = dY + j * m;
        REAL *dz = dZ + j * m;
        switch (activation) {
        case TANH: for (int64_t i = 0; i < m; i++) dz[i] = NAME(sloped)(TANH, y[i], dy[i]); break;
        case RELU: for (int64_t i = 0; i < m; i++) dz[i] = NAME(sloped)(RELU, y[i], dy[i]); break;
        default: for (int64_t i = 0; i < m; i++) dz[i] = dy[i];
        }
        da[j] = (REAL)NAME(total)(dz, m);
    }
    NAME(product)(gemm, by_rows ? "NN" : "NT", units, inputs, m, 1, dZ, m, X, by_rows ? inputs : m, 0, dA, inputs);
    if (dX && by_rows) NAME(product)(gemm, "TN", m, inputs, units, 1, dZ, m, A, inputs, 0, dX, inputs);
    if (dX && !by_rows) NAME(product)(gemm, "TN", inputs, m, units, 1, A, inputs, dZ, m, 0, dX, m);
}

/* A step of Adagrad: squares += g², x −= rate · g / (√squares + epsilon), for gradients g of x (n,); counts it in `steps`. */
FOR_THIS_PROCESSOR void NAME(adagrad)(int64_t n, REAL *x, const REAL *gradient, REAL *squares, float *steps, double rate,
                                      double epsilon)
{
    const REAL by = (REAL)rate, least = (REAL)epsilon;
    for (int64_t i = 0; i < n; i++) {
        const REAL square = squares[i] + gradient[i] * gradient[i];
        squares[i] = square;
        x[i] -= by * gradient[i] / (NAME(root)(square) + least);
    }
    *steps += 1;
}
