/* The spherical losses for one target an example: losses.py. */

/* The loss of an example and its partial derivatives, in its four letters: ℓ, dq, ds, do. */
typedef struct {
    double value, dq, ds, dout;
} NAME(Partials);

/* ℓ(q, s, o, t) for D outputs, by the formulas of losses.py; a is ε for the spherical softmax. */
PART NAME(Partials) NAME(partials)(int64_t loss, double a, double b, double D, double q, double s, double o, double t)
{
    NAME(Partials) l = {0};
    if (loss == SQUARED) {
        l.value = q + t * (t - 2 * o), l.dq = 1, l.dout = -2 * t;
    } else if (loss == SPHERICAL) {
        const double Z = q + D * a, numerator = o * o + a;
        l.value = t * log(Z) - t * log(numerator), l.dq = t / Z, l.dout = -2 * t * o / numerator;
    } else if (loss == TAYLOR) {
        const double Z = D + s + q / 2, numerator = 1 + o + o * o / 2;
        l.value = t * log(Z) - t * log(numerator), l.ds = t / Z, l.dq = l.ds / 2, l.dout = -t * (1 + o) / numerator;
    } else {
        const double mu = s / D, sigma = sqrt(q / D - mu * mu), z = (o - mu) / sigma, margin = a * (b - z);
        const double softplus = (margin > 0 ? margin : 0) + log1p(exp(-fabs(margin)));
        l.value = t * softplus / a, l.dout = -t * exp(margin - softplus) / sigma;
        l.dq = l.dout * z / sigma * (-0.5 / D), l.ds = l.dout * (-1 / D) - 2 * l.dq * mu;
    }
    return l;
}

/* found (4,m) ← ℓ, and dq, ds, do times upstream (m,), given outputs (3,m): q, s, o. With a prior, p (m,) is √π at the
 * targets and D = Σπ. Returns whether all of them are finite. */
PART int64_t NAME(losses)(int64_t loss, double a, double b, double D, int64_t m, const double *outputs, const REAL *p,
                          const double *t, const double *upstream, REAL *found)
{
    double total = 0;
    for (int64_t i = 0; i < m; i++) {
        const double q = outputs[i], s = outputs[m + i], o = outputs[2 * m + i], tilt = p ? p[i] : 1;
        const NAME(Partials) l = NAME(partials)(loss, a, b, D, q, s, o / tilt, t[i]);
        const REAL value = (REAL)(p ? l.value - 2 * t[i] * log(tilt) : l.value), dq = (REAL)(l.dq * upstream[i]);
        const REAL ds = (REAL)(l.ds * upstream[i]), dout = (REAL)(l.dout / tilt * upstream[i]);
        found[i] = value, found[m + i] = dq, found[2 * m + i] = ds, found[3 * m + i] = dout;
        total += q + value + dq + ds + dout;
    }
    return isfinite(total);
}
