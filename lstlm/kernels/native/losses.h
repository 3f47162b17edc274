/* The spherical losses for one target an example: spherical/losses.py. All of it in float64. */

/* The loss of an example and its partial derivatives, in its four letters: ℓ, dq, ds, do. */
typedef struct {
    double value, dq, ds, dout;
} Partials;

/* ℓ(q, s, o, t) for D outputs, by the formulas there; a is ε for the spherical softmax. */
PART Partials partials_of(int64_t loss, double a, double b, double D, double q, double s, double o, double t)
{
    Partials l = {0};
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
