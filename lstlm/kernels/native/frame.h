/* U and U⁻ᵀ: looking for singular values out of range, and repairing them. In float64 throughout. */

/* out (k,d) ← Z F. */
PART void times(const double *Z, int64_t k, const Matrix<const Real> &F, double *out)
{
    const int64_t d = F.columns;
    memset(out, 0, k * d * sizeof(double));
    for (int64_t i = 0; i < F.rows; i++)
        for (int64_t l = 0; l < k; l++) {
            const double z = Z[l * d + i];
            for (int64_t j = 0; j < d; j++) out[l * d + j] += z * F[i][j];
        }
}

/* out (k,d) ← Z Fᵀ. */
PART void times_turned(const double *Z, int64_t k, const Matrix<const Real> &F, double *out)
{
    const int64_t d = F.columns;
    for (int64_t i = 0; i < F.rows; i++)
        for (int64_t l = 0; l < k; l++) {
            const Real *row = F[i];
            double lanes[LANES] = {0}, total = 0;
            int64_t j = 0;
            for (; j + LANES <= d; j += LANES)
                for (int64_t lane = 0; lane < LANES; lane++) lanes[lane] += Z[l * d + j + lane] * row[j + lane];
            for (; j < d; j++) total += Z[l * d + j] * row[j];
            for (int64_t lane = 0; lane < LANES; lane++) total += lanes[lane];
            out[l * d + i] = total;
        }
}

/* Make the k rows of X (k,d) orthonormal, by Gram and Schmidt, each twice. */
PART void orthonormal(double *X, int64_t k, int64_t d)
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

FOR_THIS_PROCESSOR static void iterate(const Matrix<const Real> &A, int64_t k, int64_t times_over, double *X, double *image)
{
    times(X, k, A, image);
    for (int64_t time = 0; time < times_over; time++) {
        times_turned(image, k, A, X);
        orthonormal(X, k, A.columns);
        times(X, k, A, image);
    }
}

/* X (k,d) ← orthonormal (X A Aᵀ), so many times over; image (k,d) ← X A. */
static void power_iteration(Matrix<const Real> A, int64_t times_over, Flat<double> X, Flat<double> image)
{
    need(A.rows == A.columns && A.rows > 0 && X.size % A.rows == 0 && image.size == X.size, "A (d,d), X and image (k,d)");
    iterate(A, X.size / A.rows, times_over, X.data, image.data);
}

/* Z F and Z Fᵀ, where the diagonal of F (d,d) is 1 + deviation, more exactly than F says. */
PART void times_frame(bool turned, const double *Z, int64_t k, const Matrix<Real> &F, const Real *deviation, double *out)
{
    const Matrix<const Real> of = {F.data, F.rows, F.columns, F.apart};
    const int64_t d = F.rows;
    if (turned)
        times_turned(Z, k, of, out);
    else
        times(Z, k, of, out);
    for (int64_t l = 0; l < k; l++)
        for (int64_t i = 0; i < d; i++) out[l * d + i] += Z[l * d + i] * (1 + (double)deviation[i] - F[i][i]);
}

/* F ← F + Lᵀ R for L, R (k,d), rounded once; the diagonal by way of its deviation. */
PART void add_to_frame(const Matrix<Real> &F, Real *deviation, const double *L, const double *R, int64_t k, double *row)
{
    const int64_t d = F.rows;
    for (int64_t i = 0; i < d; i++) {
        memset(row, 0, d * sizeof(double));
        for (int64_t l = 0; l < k; l++)
            for (int64_t j = 0; j < d; j++) row[j] += L[l * d + i] * R[l * d + j];
        deviation[i] = (Real)(deviation[i] + row[i]);
        for (int64_t j = 0; j < d; j++) F[i][j] = (Real)(F[i][j] + row[j]);
        F[i][i] = deviation[i] + 1;
    }
}

FOR_THIS_PROCESSOR static void repair(const Matrix<Real> &U_inv_T, const Matrix<Real> &U, Real *deviation, int64_t k,
                                      const double *X, const double *alphas, const double *Y, double *scratch)
{
    const int64_t d = U.rows;
    double *rows = scratch, *left = rows + k * d, *spare = left + k * d;
    for (int inverse = 0; inverse < 2; inverse++) {
        const Matrix<Real> &F = inverse ? U : U_inv_T;
        Real *apart = deviation + inverse * d;
        times_frame(false, X, k, F, apart, rows);
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
        add_to_frame(F, apart, left, rows, k, spare);
    }
    times_frame(true, Y, k, U_inv_T, deviation, rows);
    times_frame(false, rows, k, U, deviation + d, left);
    for (int64_t i = 0; i < k * d; i++) left[i] = Y[i] - left[i];
    times_frame(true, left, k, U_inv_T, deviation, rows);
    add_to_frame(U_inv_T, deviation, rows, Y, k, spare);
}

/* U ← E⁻¹U, U⁻ᵀ ← E U⁻ᵀ for E = E_1 … E_k, E_j = I + α_j x_j x_jᵀ, then Newton's step on U⁻¹ along the rows of Y (k,d).
 * `deviation` (2,d) is that of the diagonals of U⁻ᵀ and U from 1. scratch (2k+1,d). */
static void repair_frame(Matrix<Real> U_inv_T, Matrix<Real> U, Flat<Real> deviation, Flat<const double> X,
                         Vector<const double> alphas, Flat<const double> Y, Flat<double> scratch)
{
    const int64_t d = U.rows, k = alphas.size;
    need(U.columns == d && U_inv_T.rows == d && U_inv_T.columns == d && deviation.size == 2 * d, "U, U⁻ᵀ (d,d)");
    need(X.size == k * d && Y.size == k * d && scratch.size == (2 * k + 1) * d, "X, Y (k,d), scratch (2k+1,d)");
    repair(U_inv_T, U, deviation.data, k, X.data, alphas.data, Y.data, scratch.data);
}
