/* C ← alpha · A B + beta · C.
 *
 * Why not a library's: GFLOP/s on one thread of an AMD EPYC (Zen 4), for the four shapes of a step (M×K×N = 128×300×902,
 * 902×128×300 and 300×128×300 with A transposed, 128×300×300), 2026-11:
 *
 *     MKL inside PyTorch 92–97 · OpenBLAS inside numpy 98–102 · BLIS 100–106 · oneDNN 108–112 · this file 110
 *
 * and on Zen 5, 2026-11-19, for M×K×N = 1024×300×902, 902×1024×300 and 1024×300×300, on one thread / on two:
 *
 *     MKL inside PyTorch 114–118 / 221–231 · this file 261–264 / 508–513
 *
 * MKL takes its widest vectors only on Intel's processors. oneDNN's is as good, but a Python registry has it in version
 * 3.2 of 2023 alone, with an OpenMP of its own whose threads would stand beside PyTorch's. Calls of this size are nearly
 * all that a step consists of. On the torch form of every operation the products are PyTorch's: impl="torch". */

struct Product {
    int64_t M, N, K;
    Real alpha, beta;
    const Real *A, *B;
    Real *C;
    int64_t a_down, a_along, b_down, b_along, ldc; /* a_ik is A[i·a_down + k·a_along] */
    bool symmetric = false; /* then what lies right of the tiles of the diagonal is left out */
    const Real *weights = nullptr; /* unless NULL, row k of B counts weights[k] times */
};

#ifdef SEVERAL_PROCESSORS
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
namespace v4 { /* 24 sums, 4 vectors and a number, of 32 registers */
enum { VECTOR_BYTES = 64, TILE_ROWS = 6, TILE_VECTORS = 4 };
#define TILE_VECTORS_4 1
#include "tiles.h"
}
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
namespace v3 { /* 12, 2 and 1, of 16 */
enum { VECTOR_BYTES = 32, TILE_ROWS = 6, TILE_VECTORS = 2 };
#undef TILE_VECTORS_4
#define TILE_VECTORS_4 0
#include "tiles.h"
}
#pragma GCC pop_options
#endif
namespace any {
enum { VECTOR_BYTES = 16, TILE_ROWS = 4, TILE_VECTORS = 2 };
#undef TILE_VECTORS_4
#define TILE_VECTORS_4 0
#include "tiles.h"
}
#undef TILE_VECTORS_4

static void (*const rows_of_product)(const Product *, int64_t, int64_t) =
#ifdef SEVERAL_PROCESSORS
    LEVEL == 4 ? v4::rows_of_product : LEVEL == 3 ? v3::rows_of_product :
#endif
    any::rows_of_product;

/* Where the rows of a thread begin: a whole number of tiles, for equal work. That of a row of a symmetric product grows
 * with its number, and has the blocks of the diagonal, which are computed whole. */
static int64_t edge_of_share(const Product *p, int64_t part, int64_t parts)
{
    const int64_t tile = LEVEL ? 6 : 4;
    const double share = (double)part / (double)parts, M = (double)p->M, half_block = 32;
    const double rows = p->symmetric ? sqrt(half_block * half_block + share * M * (M + 2 * half_block)) - half_block : share * M;
    const int64_t edge = (int64_t)(rows / (double)tile + 0.5) * tile;
    return part < parts && edge < p->M ? edge : p->M;
}

/* The rows of one thread. The sums are the same for any number of threads. */
static void share_of_product(const void *of, int64_t part, int64_t parts)
{
    const Product mine = *(const Product *)of; /* as in share_pass */
    rows_of_product(&mine, edge_of_share(&mine, part, parts), edge_of_share(&mine, part + 1, parts));
}

static void multiply(const Product &p, int64_t threads)
{
    const int64_t most = 1 + p.M * p.N * p.K / WORTH_A_THREAD;
    if (threads > 1 && most > 1)
        Threads::ours().share(threads < most ? threads : most, share_of_product, &p);
    else
        rows_of_product(&p, 0, p.M);
}

/* C (M,N) ← alpha · A B + beta · C by at most so many threads; `turned` names which of A and B are stored transposed. */
static void product(int64_t threads, const char *turned, int64_t M, int64_t N, int64_t K, double alpha, const Real *A,
                    int64_t lda, const Real *B, int64_t ldb, double beta, Real *C, int64_t ldc)
{
    const bool a = turned[0] == 'T', b = turned[1] == 'T';
    multiply({M, N, K, (Real)alpha, (Real)beta, A, B, C, a ? 1 : lda, a ? lda : 1, b ? 1 : ldb, b ? ldb : 1, ldc}, threads);
}

/* C (d,d), right of its diagonal, ← the transpose of rows [first, last) of what lies left of it. */
FOR_THIS_PROCESSOR static void mirror_rows(int64_t first, int64_t last, Real *C, int64_t ldc)
{
    enum { BLOCK = 16 };
    for (int64_t top = first; top < last; top += BLOCK)
        for (int64_t left = 0; left < top + BLOCK; left += BLOCK)
            for (int64_t i = top; i < last && i < top + BLOCK; i++)
                for (int64_t j = left; j < i && j < left + BLOCK; j++) C[j * ldc + i] = C[i * ldc + j];
}

static void share_of_mirror(const void *of, int64_t part, int64_t parts)
{
    const Product *p = (const Product *)of;
    mirror_rows(edge_of_share(p, part, parts), edge_of_share(p, part + 1, parts), p->C, p->ldc);
}

/* What a symmetric product has left out. */
static void mirror(const Product &p, int64_t threads)
{
    const int64_t most = 1 + p.M * p.M / WORTH_SHARING;
    if (threads > 1 && most > 1)
        Threads::ours().share(threads < most ? threads : most, share_of_mirror, &p);
    else
        mirror_rows(0, p.M, p.C, p.ldc);
}

/* C (d,d) ← alpha · AᵀB + beta · C, known to be symmetric, as C is, for A, B (K,d): 0.6 of the work for d = 300. */
static void symmetric_product(int64_t threads, int64_t d, int64_t K, double alpha, const Real *A, int64_t lda, const Real *B,
                              int64_t ldb, double beta, Real *C, int64_t ldc)
{
    const Product p = {d, d, K, (Real)alpha, (Real)beta, A, B, C, 1, lda, ldb, 1, ldc, true};
    multiply(p, threads);
    mirror(p, threads);
}

/* C ← alpha · A B + beta · C for A (M,K), B (K,N) of any strides. */
static void gemm(Strided<const Real> A, Strided<const Real> B, Matrix<Real> C, double alpha, double beta, int64_t threads)
{
    need(A.rows == C.rows && A.columns == B.rows && B.columns == C.columns && A.columns > 0, "A (M,K), B (K,N), C (M,N)");
    multiply({A.rows, B.columns, A.columns, (Real)alpha, (Real)beta, A.data, B.data, C.data, A.down, A.along, B.down,
              B.along, C.apart},
             threads);
}
