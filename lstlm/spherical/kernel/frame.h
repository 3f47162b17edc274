/* U and U⁻ᵀ: looking for singular values out of range, and repairing them; stabilise.py, stack.py. */

/* Make the k rows of X (k,d) orthonormal, by Gram and Schmidt, each twice. */
PART void NAME(orthonormal)(double *X, int64_t k, int64_t d)
{
    for (int64_t i = 0; i < k; i++) {
        double *x = X + i * d, square = 0;
        for (int64_t time = 0; time < 2; time++)
            for (int64_t j = 0; j < i; j++) {
                double overlap = 0;
                for (int64_t l = 0; l < d; l++) overlap += x[l] * X[j * d + l];
                for (int64_t l = 0; l < d; l++) x[l] -= overlap * X[j * d + l];
            }
        for (int64_t l = 0; l < d; l++) square += x[l] * x[l];
        for (int64_t l = 0; l < d; l++) x[l] /= square > 0 ? sqrt(square) : 1;
    }
}

/* X (k,d) ← orthonormal (X A Aᵀ), `times` times; image ← X A. scratch (2k,d). */
FOR_THIS_PROCESSOR void NAME(power_iteration)(const NAME(Products) *by, int64_t d, int64_t width, const REAL *A, int64_t k,
                                              int64_t times, double *X, double *image, REAL *scratch)
{
    REAL *rounded = scratch, *turned = scratch + k * d;
    for (int64_t time = 0; time <= times; time++) {
        for (int64_t l = 0; l < k * d; l++) rounded[l] = (REAL)X[l];
        NAME(product)(by, "NN", k, d, d, 1, rounded, d, A, width, 0, turned, d);
        if (time == times) break;
        NAME(product)(by, "NT", k, d, d, 1, turned, d, A, width, 0, rounded, d);
        for (int64_t l = 0; l < k * d; l++) X[l] = rounded[l];
        NAME(orthonormal)(X, k, d);
    }
    for (int64_t l = 0; l < k * d; l++) image[l] = turned[l];
}

/* out (k,d) ← Z F in float64, where the diagonal of F (d,d) is 1 + deviation. */
PART void NAME(times_frame)(const double *Z, int64_t k, const REAL *F, const REAL *deviation, int64_t d,
                              int64_t width, double *out)
{
    memset(out, 0, k * d * sizeof(double));
    for (int64_t i = 0; i < d; i++)
        for (int64_t l = 0; l < k; l++) {
            const double z = Z[l * d + i];
            for (int64_t j = 0; j < d; j++) out[l * d + j] += z * F[i * width + j];
            out[l * d + i] += z * (1 + (double)deviation[i] - F[i * width + i]);
        }
}

/* out (k,d) ← Z Fᵀ in the same way. */
PART void NAME(times_frame_turned)(const double *Z, int64_t k, const REAL *F, const REAL *deviation, int64_t d,
                                     int64_t width, double *out)
{
    for (int64_t i = 0; i < d; i++)
        for (int64_t l = 0; l < k; l++) {
            const REAL *row = F + i * width;
            double lanes[LANES] = {0}, total = Z[l * d + i] * (1 + (double)deviation[i] - row[i]);
            int64_t j = 0;
            for (; j + LANES <= d; j += LANES)
                for (int64_t lane = 0; lane < LANES; lane++) lanes[lane] += Z[l * d + j + lane] * row[j + lane];
            for (; j < d; j++) total += Z[l * d + j] * row[j];
            for (int64_t lane = 0; lane < LANES; lane++) total += lanes[lane];
            out[l * d + i] = total;
        }
}

/* F ← F + Lᵀ R for L, R (k,d), rounded once; the diagonal by way of its deviation. */
PART void NAME(add_to_frame)(REAL *F, REAL *deviation, int64_t d, int64_t width, const double *L, const double *R,
                               int64_t k, double *row)
{
    for (int64_t i = 0; i < d; i++) {
        memset(row, 0, d * sizeof(double));
        for (int64_t l = 0; l < k; l++)
            for (int64_t j = 0; j < d; j++) row[j] += L[l * d + i] * R[l * d + j];
        deviation[i] = (REAL)(deviation[i] + row[i]);
        for (int64_t j = 0; j < d; j++) F[i * width + j] = (REAL)(F[i * width + j] + row[j]);
        F[i * width + i] = deviation[i] + 1;
    }
}

/* Stack.repair of stack.py: U ← E⁻¹U, U⁻ᵀ ← E U⁻ᵀ for E = E_1 … E_k, E_j = I + α_j x_j x_jᵀ, then Newton's step on U⁻¹
 * along the rows of Y. U follows U⁻ᵀ in memory. scratch (2k+1,d). */
FOR_THIS_PROCESSOR void NAME(repair)(int64_t d, int64_t width, REAL *U_inv_T, REAL *deviation, int64_t k,
                                     const double *X, const double *alphas, const double *Y, double *scratch)
{
    REAL *U = U_inv_T + d * width;
    double *rows = scratch, *left = rows + k * d, *spare = left + k * d;
    for (int64_t inverse = 0; inverse < 2; inverse++) {
        REAL *F = inverse ? U : U_inv_T, *apart = deviation + inverse * d;
        NAME(times_frame)(X, k, F, apart, d, width, rows);
        for (int64_t j = 0; j < k; j++) {
            const double *x = X + j * d;
            double square = 0;
            for (int64_t i = 0; i < d; i++) square += x[i] * x[i];
            const double factor = inverse ? -alphas[j] / (1 + alphas[j] * square) : alphas[j];
            for (int64_t i = 0; i < d; i++) left[j * d + i] = factor * x[i];
            for (int64_t before = 0; before < j; before++) { /* x_jᵀ meets what the repairs before it have made of F */
                double overlap = 0;
                for (int64_t i = 0; i < d; i++) overlap += x[i] * left[before * d + i];
                for (int64_t i = 0; i < d; i++) rows[j * d + i] += overlap * rows[before * d + i];
            }
        }
        NAME(add_to_frame)(F, apart, d, width, left, rows, k, spare);
    }
    NAME(times_frame_turned)(Y, k, U_inv_T, deviation, d, width, rows);
    NAME(times_frame)(rows, k, U, deviation + d, d, width, left);
    for (int64_t i = 0; i < k * d; i++) left[i] = Y[i] - left[i];
    NAME(times_frame_turned)(left, k, U_inv_T, deviation, d, width, rows);
    NAME(add_to_frame)(U_inv_T, deviation, d, width, rows, Y, k, spare);
}
