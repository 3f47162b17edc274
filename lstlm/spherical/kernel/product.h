/* Products of matrices: those of BLAS, and one for processors for which BLAS has none by AVX-512.
 *
 * MKL takes such vectors only on Intel's processors. The product below reaches 95 % of what AMD's can do where MKL
 * reaches 85 %, and calls of this size are nearly all that a step consists of. */

/* 64-bit integers, of which a BLAS of 32-bit integers reads the lower half. */
typedef void NAME(Gemm)(const char *, const char *, const int64_t *, const int64_t *, const int64_t *, const REAL *,
                        const REAL *, const int64_t *, const REAL *, const int64_t *, const REAL *, REAL *,
                        const int64_t *);

/* Which product to take: that of BLAS; or, where `gemm` is NULL, our own, by so many threads of the OpenMP library that
 * PyTorch has loaded. */
typedef struct {
    NAME(Gemm) *gemm;
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned); /* GOMP_parallel */
    int (*thread_number)(void), (*threads_at_work)(void);
    int64_t threads;
} NAME(Products);

#ifdef WIDE_VECTORS
enum { NAME(PER_VECTOR) = 64 / sizeof(REAL), NAME(BREADTH) = TILE_VECTORS * NAME(PER_VECTOR) };
typedef REAL NAME(Vector) __attribute__((vector_size(64)));
typedef REAL NAME(Four) __attribute__((vector_size(4 * sizeof(REAL)), aligned(sizeof(REAL))));

/* out (rows,vectors) ← A panel, where a_ik is A[i·down + k·along]. `rows` and `vectors` are known when this is compiled,
 * so that the sums stay in registers; what happens to them next would drive them out. */
PART void NAME(tile)(const int rows, const int vectors, int64_t depth, const REAL *A, int64_t down, int64_t along,
                     const NAME(Vector) *panel, NAME(Vector) out[TILE_ROWS][TILE_VECTORS])
{
    NAME(Vector) sums[TILE_ROWS][TILE_VECTORS];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++) sums[i][v] = (NAME(Vector)){0};
    for (int64_t k = 0; k < depth; k++) {
        NAME(Vector) b[TILE_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) b[v] = panel[k * TILE_VECTORS + v];
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const REAL a = A[i * down + k * along];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sums[i][v] += a * b[v];
        }
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++) out[i][v] = sums[i][v];
}

/* c (n,) ← alpha · sums + beta · c. */
PART void NAME(store)(int64_t n, REAL alpha, const REAL *sums, REAL beta, REAL *c)
{
    if (beta == 0)
        for (int64_t j = 0; j < n; j++) c[j] = alpha * sums[j];
    else
        for (int64_t j = 0; j < n; j++) c[j] = alpha * sums[j] + beta * c[j];
}

/* C (M,columns) ← alpha · A panel + beta · C by tiles of so many vectors. */
PART void NAME(tiles)(const int vectors, int64_t M, int64_t depth, REAL alpha, const REAL *A, int64_t down,
                      int64_t along, const NAME(Vector) *panel, REAL beta, REAL *C, int64_t ldc, int64_t columns)
{
    for (int64_t i = 0; i < M; i += TILE_ROWS) {
        NAME(Vector) sums[TILE_ROWS][TILE_VECTORS];
        const int64_t rows = M - i < TILE_ROWS ? M - i : TILE_ROWS;
        if (rows == TILE_ROWS)
            NAME(tile)(TILE_ROWS, vectors, depth, A + i * down, down, along, panel, sums);
        else
            for (int64_t row = 0; row < rows; row++)
                NAME(tile)(1, vectors, depth, A + (i + row) * down, down, along, panel, sums + row);
        for (int64_t row = 0; row < rows; row++)
            NAME(store)(columns, alpha, (const REAL *)sums[row], beta, C + (i + row) * ldc);
    }
}

/* to (4,4) ← the transpose of (4,4) at `from`, whose rows are `apart` and those of `to` BREADTH numbers apart. */
PART void NAME(turn)(const REAL *from, int64_t apart, REAL *to)
{
    NAME(Four) a = *(NAME(Four) *)from, b = *(NAME(Four) *)(from + apart);
    NAME(Four) c = *(NAME(Four) *)(from + 2 * apart), d = *(NAME(Four) *)(from + 3 * apart);
    const NAME(Four) ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    a = __builtin_shufflevector(a, b, 2, 6, 3, 7), c = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(NAME(Four) *)to = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    *(NAME(Four) *)(to + NAME(BREADTH)) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    *(NAME(Four) *)(to + 2 * NAME(BREADTH)) = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    *(NAME(Four) *)(to + 3 * NAME(BREADTH)) = __builtin_shufflevector(a, c, 2, 3, 6, 7);
}

/* panel (depth,BREADTH) ← columns of B, whose b_kj is B[k·down + j·along], and zeros beyond them. */
PART void NAME(pack)(int64_t depth, int64_t columns, const REAL *B, int64_t down, int64_t along, REAL *panel)
{
    const int64_t fours = down == 1 ? columns / 4 * 4 : 0, deep = depth / 4 * 4;
    if (along == 1 && columns == NAME(BREADTH)) {
        for (int64_t k = 0; k < depth; k++) memcpy(panel + k * NAME(BREADTH), B + k * down, sizeof(REAL[NAME(BREADTH)]));
        return;
    }
    for (int64_t j = 0; j < fours; j += 4)
        for (int64_t k = 0; k < deep; k += 4) NAME(turn)(B + k + j * along, along, panel + k * NAME(BREADTH) + j);
    for (int64_t k = 0; k < depth; k++)
        for (int64_t j = k < deep ? fours : 0; j < NAME(BREADTH); j++)
            panel[k * NAME(BREADTH) + j] = j < columns ? B[k * down + j * along] : 0;
}

/* The arguments of `product` below. */
typedef struct {
    const NAME(Products) *by;
    const char *transposed;
    int64_t M, N, K;
    REAL alpha, beta;
    const REAL *A, *B;
    REAL *C;
    int64_t lda, ldb, ldc;
} NAME(Product);

/* Rows [first, last) of C: B goes panel by panel into memory that fits the cache. */
__attribute__((target("arch=x86-64-v4"))) static void NAME(rows_of_product)(const NAME(Product) *p, int64_t first,
                                                                            int64_t last)
{
    enum { DEPTH = 384 };
    static _Thread_local NAME(Vector) panel[DEPTH * TILE_VECTORS]; /* too large for the stack of some threads */
    const int a_turned = p->transposed[0] == 'T', b_turned = p->transposed[1] == 'T';
    const int64_t a_down = a_turned ? 1 : p->lda, a_along = a_turned ? p->lda : 1, M = last - first;
    const int64_t b_down = b_turned ? 1 : p->ldb, b_along = b_turned ? p->ldb : 1, ldc = p->ldc;
    for (int64_t k = 0; k < p->K; k += DEPTH)
        for (int64_t j = 0; j < p->N; j += NAME(BREADTH)) {
            const int64_t depth = p->K - k < DEPTH ? p->K - k : DEPTH;
            const int64_t columns = p->N - j < NAME(BREADTH) ? p->N - j : NAME(BREADTH);
            const REAL *A = p->A + first * a_down + k * a_along, alpha = p->alpha, beta = k == 0 ? p->beta : 1;
            REAL *C = p->C + first * ldc + j;
            NAME(pack)(depth, columns, p->B + k * b_down + j * b_along, b_down, b_along, (REAL *)panel);
#define TILES(vectors) NAME(tiles)(vectors, M, depth, alpha, A, a_down, a_along, panel, beta, C, ldc, columns)
            switch ((columns + NAME(PER_VECTOR) - 1) / NAME(PER_VECTOR)) {
            case 4: TILES(4); break;
            case 3: TILES(3); break;
            case 2: TILES(2); break;
            default: TILES(1);
            }
#undef TILES
        }
}

/* The rows of one thread of those at work: a whole number of tiles. The sums are the same for any number of them. */
static void NAME(share_of_product)(void *of)
{
    const NAME(Product) *p = of;
    const int64_t tiles = (p->M + TILE_ROWS - 1) / TILE_ROWS;
    const int64_t number = p->by->thread_number(), all = p->by->threads_at_work();
    const int64_t first = number * tiles / all * TILE_ROWS, last = (number + 1) * tiles / all * TILE_ROWS;
    NAME(rows_of_product)(p, first, last < p->M ? last : p->M);
}
#endif

/* C (M,N) ← alpha · A B + beta · C, where `transposed` names which of A and B are stored transposed. */
void NAME(product)(const NAME(Products) *by, const char transposed[2], int64_t M, int64_t N, int64_t K, double alpha,
                   const REAL *A, int64_t lda, const REAL *B, int64_t ldb, double beta, REAL *C, int64_t ldc)
{
    const REAL a = (REAL)alpha, b = (REAL)beta;
    if (by->gemm) {
        by->gemm(transposed + 1, transposed, &N, &M, &K, &a, B, &ldb, A, &lda, &b, C, &ldc); /* BLAS sees all transposed */
        return;
    }
#ifdef WIDE_VECTORS
    NAME(Product) all = {by, transposed, M, N, K, a, b, A, B, C, lda, ldb, ldc};
    const int64_t most = 1 + M * N * K / WORTH_A_THREAD, threads = by->threads < most ? by->threads : most;
    if (threads > 1)
        by->parallel(NAME(share_of_product), &all, (unsigned)threads, 0);
    else
        NAME(rows_of_product)(&all, 0, M);
#endif
}
