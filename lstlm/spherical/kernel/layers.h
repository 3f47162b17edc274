/* The hidden layers: layers.py. */

/* A layer: A (units,inputs), a (units,), its results Y (units,m), and where the gradients of A and a go. */
typedef struct {
    int64_t units, inputs;
    const REAL *A, *a;
    REAL *Y, *dA, *da;
} NAME(Layer);

/* y (n,) ← f(y + a). */
PART void NAME(activate)(int64_t activation, int64_t n, REAL a, REAL *y)
{
    for (int64_t i = 0; i < n; i++) y[i] += a;
    if (activation == TANH)
        for (int64_t i = 0; i < n; i++) y[i] = NAME(tanh)(y[i]);
    else if (activation == RELU)
        for (int64_t i = 0; i < n; i++) y[i] = y[i] > 0 || y[i] != y[i] ? y[i] : 0;
}

/* dz (n,) ← the gradient of what the activation took, given its result y and the gradient of that. */
PART void NAME(slope)(int64_t activation, int64_t n, const REAL *y, const REAL *dy, REAL *dz)
{
    if (activation == TANH)
        for (int64_t i = 0; i < n; i++) dz[i] = dy[i] * (1 - y[i] * y[i]);
    else if (activation == RELU)
        for (int64_t i = 0; i < n; i++) dz[i] = y[i] <= 0 ? 0 : dy[i];
    else
        memcpy(dz, dy, n * sizeof(REAL));
}

/* Y_l = f(A_l Y_(l−1) + a_l 1ᵀ) for all layers, of which Y_0 is stored as x (m,inputs). */
FOR_THIS_PROCESSOR void NAME(layers_forward)(const NAME(Products) *by, int64_t activation, int64_t count,
                                             const NAME(Layer) *layers, int64_t m, const REAL *x)
{
    for (int64_t l = 0; l < count; l++) {
        const NAME(Layer) *of = layers + l;
        if (l == 0)
            NAME(product)(by, "NT", of->units, m, of->inputs, 1, of->A, of->inputs, x, of->inputs, 0, of->Y, m);
        else
            NAME(product)(by, "NN", of->units, m, of->inputs, 1, of->A, of->inputs, of[-1].Y, m, 0, of->Y, m);
        for (int64_t j = 0; j < of->units; j++) NAME(activate)(activation, m, of->a[j], of->Y + j * m);
    }
}

/* Given x and Y, and dY of the last layer: the gradients dA and da of every layer and, unless NULL, dx (m,inputs).
 * Scratch: spare (2,largest,m), for the largest number of units. */
FOR_THIS_PROCESSOR void NAME(layers_backward)(const NAME(Products) *by, int64_t activation, int64_t count,
                                              const NAME(Layer) *layers, int64_t m, const REAL *x, const REAL *dY,
                                              REAL *spare, int64_t largest, REAL *dx)
{
    REAL *dZ = spare, *below = spare + largest * m;
    for (const NAME(Layer) *of = layers + count - 1; of >= layers; of--) {
        const int64_t units = of->units, inputs = of->inputs;
        for (int64_t j = 0; j < units; j++) {
            NAME(slope)(activation, m, of->Y + j * m, dY + j * m, dZ + j * m);
            of->da[j] = (REAL)NAME(total)(dZ + j * m, m);
        }
        if (of > layers) {
            NAME(product)(by, "NT", units, inputs, m, 1, dZ, m, of[-1].Y, m, 0, of->dA, inputs);
            NAME(product)(by, "TN", inputs, m, units, 1, of->A, inputs, dZ, m, 0, below, m);
        } else {
            NAME(product)(by, "NN", units, inputs, m, 1, dZ, m, x, inputs, 0, of->dA, inputs);
            if (dx) NAME(product)(by, "TN", m, inputs, units, 1, dZ, m, of->A, inputs, 0, dx, inputs);
        }
        dY = below; /* which is read in full before it is written again */
    }
}

/* What stands below the output layer, from words to h and back: whole_pass.py. */
typedef struct {
    const NAME(Products) *by;
    int64_t m, D, size, bags, each; /* word vectors (D,size); `each` of them are added up, `bags` times */
    double scale;
    const REAL *E;
    const int64_t *context; /* (bags,each) */
    int64_t activation, count, largest;
    const NAME(Layer) *layers;
    REAL *x, *dx;          /* (m,inputs) */
    const REAL *dY;        /* (hidden,m) */
    REAL *spare;           /* (2,largest,m) */
} NAME(Below);

/* From words to h; returns the place of a word that is none, with nothing done, −1 where all are. */
int64_t NAME(below_forward)(const NAME(Below) *b)
{
    const int64_t wrong = NAME(sum_rows)(b->E, b->D, b->size, b->context, b->bags, b->each, b->scale, b->x);
    if (wrong < 0) NAME(layers_forward)(b->by, b->activation, b->count, b->layers, b->m, b->x);
    return wrong;
}

/* From the gradient of h to those of the layers and of x; returns the sum of the first, which tells whether it is finite. */
double NAME(below_backward)(const NAME(Below) *b)
{
    NAME(layers_backward)(b->by, b->activation, b->count, b->layers, b->m, b->x, b->dY, b->spare, b->largest, b->dx);
    return NAME(total)(b->dY, b->layers[b->count - 1].units * b->m);
}

/* A step of Adagrad: squares += g², x −= rate · g / (√squares + epsilon), for gradients g of x (n,); counts it in `steps`. */
FOR_THIS_PROCESSOR void NAME(adagrad)(int64_t n, REAL *x, const REAL *gradient, REAL *squares, float *steps, double rate,
                                      double epsilon)
{
    const REAL by = (REAL)rate, least = (REAL)epsilon;
    for (int64_t i = 0; i < n; i++) {
        const REAL square = squares[i] + gradient[i] * gradient[i];
        squares[i] = square;
        x[i] -= by * gradient[i] / ((REAL)sqrt(square) + least);
    }
    *steps += 1;
}
