/* The spherical losses: spherical/losses.py. All of it in float64. */

/* Which loss it is, its parameters (a is ε for the spherical softmax), and D, or Σπ where there is a prior. */
struct Loss {
    int64_t kind;
    double a, b, D;
};

/* The loss of an example and its partial derivatives ℓ, dq, ds. */
struct Partials {
    double value, dq, ds;
};

/* Adds up ℓ(q, s, o, t) and its derivatives over the pairs of an example, by the formulas there. */
struct Example {
    Loss loss;
    Partials sum;
    double q, s, Z, log_Z, mu, sigma;

    Example(const Loss &loss, double q, double s) : loss(loss), sum{0, 0, 0}, q(q), s(s)
    {
        Z = loss.kind == SPHERICAL ? q + loss.D * loss.a : loss.D + s + q / 2;
        log_Z = loss.kind == SPHERICAL || loss.kind == TAYLOR ? log(Z) : 0;
        mu = s / loss.D, sigma = sqrt(q / loss.D - mu * mu);
        if (loss.kind == SQUARED) sum.value = q, sum.dq = 1;
    }

    /* Take a pair with output o and value t; returns do. */
    double add(double o, double t)
    {
        if (loss.kind == SQUARED) {
            sum.value += t * (t - 2 * o);
            return -2 * t;
        }
        if (loss.kind == SPHERICAL) {
            const double numerator = o * o + loss.a;
            sum.value += t * log_Z - t * log(numerator), sum.dq += t / Z;
            return -2 * t * o / numerator;
        }
        if (loss.kind == TAYLOR) {
            const double numerator = 1 + o + o * o / 2;
            sum.value += t * log_Z - t * log(numerator), sum.ds += t / Z, sum.dq += t / Z / 2;
            return -t * (1 + o) / numerator;
        }
        const double z = (o - mu) / sigma, margin = loss.a * (loss.b - z);
        const double softplus = (margin > 0 ? margin : 0) + log1p(exp(-fabs(margin)));
        const double slope = -t * exp(margin - softplus) / sigma, dq = slope * z / sigma * (-0.5 / loss.D);
        sum.value += t * softplus / loss.a, sum.dq += dq, sum.ds += slope * (-1 / loss.D) - 2 * dq * mu;
        return slope;
    }
};
