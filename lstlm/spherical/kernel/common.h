/* What every part needs. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && __GNUC__ >= 12
#define FOR_THIS_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define WIDE_VECTORS
#else
#define FOR_THIS_PROCESSOR
#endif

#if defined(__GNUC__)
#define PREFETCH(address) __builtin_prefetch(address)
#define PART static inline __attribute__((always_inline)) /* of a function, for whose processor it is then compiled */
#else
#define PREFETCH(address) ((void)0)
#define PART static inline
#endif

enum {
    LINE = 64,    /* bytes of a cache line */
    AHEAD = 8,    /* rows to ask memory for in advance */
    LANES = 16,   /* sums side by side, so that one of vectors comes of it */
    AT_ONCE = 64, /* rows of about the same age in one product */
    WORTH_A_THREAD = 1 << 20, /* multiplications */
    TILE_ROWS = 6, TILE_VECTORS = 4, /* of a product: 24 sums, 4 vectors and a number are in registers, of 32 */
};

/* Whether this is a processor for which product.h has a product of its own, and BLAS has none that is as good. */
int64_t has_own_product(void)
{
#ifdef WIDE_VECTORS
    __builtin_cpu_init();
    return __builtin_cpu_is("amd") && __builtin_cpu_supports("x86-64-v4");
#else
    return 0;
#endif
}

/* The place of the first of ids (n,) that is not below `rows`; −1 where all are. A negative id is a large one, unsigned. */
int64_t outside(const int64_t *ids, int64_t n, int64_t rows)
{
    for (int64_t i = 0; i < n; i++)
        if ((uint64_t)ids[i] >= (uint64_t)rows) return i;
    return -1;
}

/* seen ← how many of the `count` repairs since `start` the rows ids (n,) have seen, by the stamps of all `rows`. Returns
 * whether that is all: 0 where every id is a row, and no stamp is older or has yet to come. */
int64_t read_stamps(const int32_t *stamp, int64_t rows, const int64_t *ids, int64_t n, int64_t start, int64_t count,
                    int64_t *seen)
{
    int64_t strange = outside(ids, n, rows) >= 0;
    for (int64_t i = 0; i < n && !strange; i++) {
        seen[i] = stamp[ids[i]] - start;
        strange = seen[i] < 0 || seen[i] > count;
    }
    return strange;
}

/* The stamps of the rows ids (n,) ← now; returns whether an id is no row, with nothing written. */
int64_t write_stamps(int32_t *stamp, int64_t rows, const int64_t *ids, int64_t n, int64_t now)
{
    if (outside(ids, n, rows) >= 0) return 1;
    for (int64_t i = 0; i < n; i++) stamp[ids[i]] = (int32_t)now;
    return 0;
}

enum { IDENTITY, TANH, RELU };              /* activations */
enum { SQUARED, SPHERICAL, TAYLOR, Z_LOSS }; /* losses: LOSSES of compiled.py */

/* tanh to 1.4 units in the last place: a polynomial near 0, else 1 − 2/(e²ˣ + 1) with e²ˣ = 2ⁿ · a polynomial. */
PART float tanh_float32(float x)
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

PART double tanh_float64(double x) { return tanh(x); }

#define JOIN_(name, type) name##_##type
#define JOIN(name, type) JOIN_(name, type)
#define NAME(name) JOIN(name, TYPE)
