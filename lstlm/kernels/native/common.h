/* What every part needs. */
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && __GNUC__ >= 12
#define SEVERAL_PROCESSORS /* which of them it is is found out when the module is loaded */
#define FOR_THIS_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_THIS_PROCESSOR
#endif

#if !defined(__GNUC__)
#error "needs the vector types of GCC or Clang; without this module everything works, a little slower"
#endif
#define PART static inline __attribute__((always_inline)) /* of a function, for whose processor it is then compiled */

enum {
    LINE = 64,                /* bytes of a cache line */
    AHEAD = 8,                /* rows to ask memory for in advance */
    LANES = 16,               /* sums side by side, so that one of vectors comes of it */
    AT_ONCE = 64,             /* rows of about the same age in one product */
    WORTH_A_THREAD = 1 << 20, /* multiplications */
    WORTH_SHARING = 1 << 15,  /* numbers that a pass goes over */
};
enum { IDENTITY, TANH, RELU };               /* ACTIVATIONS of ops.py */
enum { SQUARED, SPHERICAL, TAYLOR, Z_LOSS }; /* `native` of the losses in spherical/losses.py */

/* The place of the first of the ids that is not below `rows`; −1 where all are. A negative id is a large one, unsigned. */
static int64_t outside(Flat<const int64_t> ids, int64_t rows)
{
    for (int64_t i = 0; i < ids.size; i++)
        if ((uint64_t)ids.data[i] >= (uint64_t)rows) return i;
    return -1;
}

static void check_rows(const Vector<const int64_t> &ids, int64_t rows)
{
    const int64_t wrong = outside({ids.data, ids.size}, rows);
    if (wrong >= 0) throw NoSuchRow{ids[wrong], rows};
}

/* Offsets (m+1,) lead from 0 to n and never back. */
static void check_offsets(const Vector<const int64_t> &offsets, int64_t n)
{
    bool holds = offsets.size > 0 && offsets[0] == 0 && offsets[offsets.size - 1] == n;
    for (int64_t i = 1; i < offsets.size; i++) holds = holds && offsets[i - 1] <= offsets[i];
    need(holds, "offsets (m+1,) from 0 to n");
}

/* tanh to 1.4 units in the last place: a polynomial near 0, else 1 − 2/(e²ˣ + 1) with e²ˣ = 2ⁿ · a polynomial. */
PART float tanh_of(float x)
{
    const float z = x * x, size = fabsf(x) < 9.1f ? fabsf(x) : 9.1f; /* beyond it tanh is 1 */
    float near = 0.021003641f + z * -0.006104948f;
    near = -0.333333284f + z * (0.133327827f + z * (-0.0538524985f + z * near));
    const float power = size * 2.88539008f; /* 2/ln 2 */
    const float n = (power + 12582912.0f) - 12582912.0f, rest = power - n; /* n: to the nearest whole number */
    float curve = 0.00961805694f + rest * (0.00133908668f + rest * 0.000154614478f);
    curve = 1 + rest * (0.693147182f + rest * (0.240226507f + rest * (0.0555035695f + rest * curve)));
    const union {
        int32_t bits;
        float value;
    } two_to_n = {((int32_t)n + 127) << 23};
    const float far = 1 - 2 / (curve * two_to_n.value + 1);
    const float result = size < 0.625f ? x + x * (z * near) : copysignf(far, x);
    return x == x ? result : x; /* what is not a number stays so */
}

PART double tanh_of(double x) { return tanh(x); }

/* eˣ for x ≤ 0 to 2 units in the last place: 2ⁿ · a polynomial. What is too small for an ordinary number becomes 0. */
PART float exp_of(float x)
{
    const float least = -87.3f, power = (x > least ? x : least) * 1.44269504f;     /* 1/ln 2 */
    const float n = (power + 12582912.0f) - 12582912.0f;                            /* to the nearest whole number */
    const float rest = ((x > least ? x : least) - n * 0.693359375f) + n * 2.12194440e-4f; /* ln 2 in two parts */
    float curve = 8.3334519073e-3f + rest * (1.3981999507e-3f + rest * 1.9875691500e-4f);
    curve = 0.5f + rest * (1.6666665459e-1f + rest * (4.1665795894e-2f + rest * curve));
    const union {
        int32_t bits;
        float value;
    } two_to_n = {((int32_t)n + 127) << 23};
    const float result = (1 + (rest + rest * rest * curve)) * two_to_n.value;
    return x == x ? (x > least ? result : 0) : x; /* what is not a number stays so */
}

PART double exp_of(double x) { return exp(x); }
