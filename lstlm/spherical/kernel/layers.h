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

/* A layer: A (units,inputs), a (units,), and where their gradients go. */
typedef struct {
    int64_t units, inputs;
    const REAL *A, *a;
    REAL *dA, *da;
} NAME(Layer);

/* Y (n,) ← f(Y + a). */
PART void NAME(activate)(int64_t activation, int64_t n, REAL a, REAL *Y)
{
    switch (activation) { /* outside the loop, which is then one of vectors */
    case TANH: for (int64_t i = 0; i < n; i++) Y[i] = NAME(activated)(TANH, Y[i] + a); break;
    case RELU: for (int64_t i = 0; i < n; i++) Y[i] = NAME(activated)(RELU, Y[i] + a); break;
    default: for (int64_t i = 0; i < n; i++) Y[i] += a;
    }
}

/* Y, the results (units,m) of all layers one after the other, Y_l = f(A_l Y_(l−1) + a_l 1ᵀ), of which Y_0 is stored as
 * x (m,inputs). */
FOR_THIS_PROCESSOR void NAME(layers_forward)(const NAME(Products) *by, int64_t activation, int64_t count,
                                             const NAME(Layer) *layers, int64_t m, const REAL *x, REAL *Y)
{
    const REAL *below = x;
    for (int64_t l = 0; l < count; l++) {
        const int64_t units = layers[l].units, inputs = layers[l].inputs, first = l == 0;
        NAME(product)(by, first ? "NT" : "NN", units, m, inputs, 1, layers[l].A, inputs, below, first ? inputs : m, 0, Y, m);
        for (int64_t j = 0; j < units; j++) NAME(activate)(activation, m, layers[l].a[j], Y + j * m);
        below = Y;
        Y += units * m;
    }
}

/* dz (n,) ← the gradient of what the activation took, given its result and the gradient of that. */
PART void NAME(slope)(int64_t activation, int64_t n, const REAL *y, const REAL *dy, REAL *dz)
{
    switch (activation) {
    case TANH: for (int64_t i = 0; i < n; i++) dz[i] = NAME(sloped)(TANH, y[i], dy[i]); break;
    case RELU: for (int64_t i = 0; i < n; i++) dz[i] = NAME(sloped)(RELU, y[i], dy[i]); break;
    default: for (int64_t i = 0; i < n; i++) dz[i] = dy[i];
    }
}

/* Given x, Y as above and dY of the last layer: the gradients dA and da of every layer and, unless NULL, dx (m,inputs).
 * Scratch: spare (2,largest,m), for the largest number of units. */
FOR_THIS_PROCESSOR void NAME(layers_backward)(const NAME(Products) *by, int64_t activation, int64_t count,
                                              const NAME(Layer) *layers, int64_t m, const REAL *x, const REAL *Y,
                                              const REAL *dY, REAL *spare, int64_t largest, REAL *dx)
{
    REAL *dZ = spare, *below = spare + largest * m;
    for (int64_t l = 0; l < count; l++) Y += layers[l].units * m;
    for (int64_t l = count - 1; l >= 0; l--) {
        const int64_t units = layers[l].units, inputs = layers[l].inputs;
        Y -= units * m;
        for (int64_t j = 0; j < units; j++) {
            NAME(slope)(activation, m, Y + j * m, dY + j * m, dZ + j * m);
            layers[l].da[j] = (REAL)NAME(total)(dZ + j * m, m);
        }
        const REAL *A = layers[l].A;
        REAL *dA = layers[l].dA;
        if (l > 0) {
            NAME(product)(by, "NT", units, inputs, m, 1, dZ, m, Y - inputs * m, m, 0, dA, inputs);
            NAME(product)(by, "TN", inputs, m, units, 1, A, inputs, dZ, m, 0, below, m);
        } else {
            NAME(product)(by, "NN", units, inputs, m, 1, dZ, m, x, inputs, 0, dA, inputs);
            if (dx) NAME(product)(by, "TN", m, inputs, units, 1, dZ, m, A, inputs, 0, dx, inputs);
        }
        dY = below; /* which is read in full before it is written again */
    }
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
