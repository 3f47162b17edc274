/* Products by tiles of TILE_ROWS × TILE_VECTORS sums, which stay in the registers of the processor that this is for.
 * Included within a namespace for each kind of processor and of number. */
enum { PER_VECTOR = VECTOR_BYTES / sizeof(Real), BREADTH = TILE_VECTORS * PER_VECTOR };
typedef Real Wide __attribute__((vector_size(VECTOR_BYTES)));
typedef Real Four __attribute__((vector_size(4 * sizeof(Real)), aligned(sizeof(Real))));

/* out (rows,vectors) ← A panel, where a_ik is A[i·down + k·along]. `rows` and `vectors` are known when this is compiled,
 * so that the sums stay in registers; what happens to them next would drive them out. */
PART void tile(const int rows, const int vectors, int64_t depth, const Real *A, int64_t down, int64_t along,
               const Wide *panel, Wide out[TILE_ROWS][TILE_VECTORS])
{
    Wide sums[TILE_ROWS][TILE_VECTORS];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++) sums[i][v] = Wide{};
    for (int64_t k = 0; k < depth; k++) {
        Wide b[TILE_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) b[v] = panel[k * TILE_VECTORS + v];
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const Real a = A[i * down + k * along];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sums[i][v] += a * b[v];
        }
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++) out[i][v] = sums[i][v];
}

/* c (n,) ← alpha · sums + beta · c. */
PART void store(int64_t n, Real alpha, const Real *sums, Real beta, Real *c)
{
    if (beta == 0)
        for (int64_t j = 0; j < n; j++) c[j] = alpha * sums[j];
    else
        for (int64_t j = 0; j < n; j++) c[j] = alpha * sums[j] + beta * c[j];
}

/* C (M,columns) ← alpha · A panel + beta · C by tiles of so many vectors. */
PART void tiles(const int vectors, int64_t M, int64_t depth, Real alpha, const Real *A, int64_t down, int64_t along,
                const Wide *panel, Real beta, Real *C, int64_t ldc, int64_t columns)
{
    for (int64_t i = 0; i < M; i += TILE_ROWS) {
        Wide sums[TILE_ROWS][TILE_VECTORS];
        const int64_t rows = M - i < TILE_ROWS ? M - i : TILE_ROWS;
        if (rows == TILE_ROWS)
            tile(TILE_ROWS, vectors, depth, A + i * down, down, along, panel, sums);
        else
            for (int64_t row = 0; row < rows; row++)
                tile(1, vectors, depth, A + (i + row) * down, down, along, panel, sums + row);
        for (int64_t row = 0; row < rows; row++) store(columns, alpha, (const Real *)sums[row], beta, C + (i + row) * ldc);
    }
}

/* to (4,4) ← the transpose of (4,4) at `from`, whose rows are `apart` and those of `to` BREADTH numbers apart. */
PART void turn(const Real *from, int64_t apart, Real *to)
{
    Four a = *(Four *)from, b = *(Four *)(from + apart), c = *(Four *)(from + 2 * apart), d = *(Four *)(from + 3 * apart);
    const Four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    a = __builtin_shufflevector(a, b, 2, 6, 3, 7), c = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(Four *)to = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    *(Four *)(to + BREADTH) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    *(Four *)(to + 2 * BREADTH) = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    *(Four *)(to + 3 * BREADTH) = __builtin_shufflevector(a, c, 2, 3, 6, 7);
}

/* panel (depth,BREADTH) ← columns of B, whose b_kj is B[k·down + j·along], and zeros beyond them; row k times weights[k]. */
PART void pack(int64_t depth, int64_t columns, const Real *B, int64_t down, int64_t along, const Real *weights, Real *panel)
{
    const int64_t fours = down == 1 ? columns / 4 * 4 : 0, deep = depth / 4 * 4;
    if (along == 1 && columns == BREADTH && !weights) {
        for (int64_t k = 0; k < depth; k++) memcpy(panel + k * BREADTH, B + k * down, sizeof(Real[BREADTH]));
        return;
    }
    if (along == 1 && columns == BREADTH) {
        for (int64_t k = 0; k < depth; k++)
            for (int64_t j = 0; j < BREADTH; j++) panel[k * BREADTH + j] = weights[k] * B[k * down + j];
        return;
    }
    for (int64_t j = 0; j < fours; j += 4)
        for (int64_t k = 0; k < deep; k += 4) turn(B + k + j * along, along, panel + k * BREADTH + j);
    for (int64_t k = 0; k < depth; k++)
        for (int64_t j = k < deep ? fours : 0; j < BREADTH; j++)
            panel[k * BREADTH + j] = j < columns ? B[k * down + j * along] : 0;
    for (int64_t k = 0; weights && k < depth; k++)
        for (int64_t j = 0; j < columns; j++) panel[k * BREADTH + j] *= weights[k];
}

/* Rows [first, last) of C: B goes panel by panel into memory that fits the cache. */
static void rows_of_product(const Product *p, int64_t first, int64_t last)
{
    enum { DEPTH = 384 };
    static thread_local Wide panel[DEPTH * TILE_VECTORS]; /* too large for the stack of some threads */
    for (int64_t k = 0; k == 0 || k < p->K; k += DEPTH) /* once even where K = 0: an empty sum is 0 */
        for (int64_t j = 0; j < p->N; j += BREADTH) {
            const int64_t depth = p->K - k < DEPTH ? p->K - k : DEPTH, columns = p->N - j < BREADTH ? p->N - j : BREADTH;
            const int64_t top = p->symmetric && j > first ? j : first, M = last - top;
            if (M <= 0) continue;
            const Real *A = p->A + top * p->a_down + k * p->a_along, beta = k == 0 ? p->beta : 1;
            Real *C = p->C + top * p->ldc + j;
            const Real *weights = p->weights ? p->weights + k : nullptr;
            pack(depth, columns, p->B + k * p->b_down + j * p->b_along, p->b_down, p->b_along, weights, (Real *)panel);
#define TILES(vectors) tiles(vectors, M, depth, p->alpha, A, p->a_down, p->a_along, panel, beta, C, p->ldc, columns)
            switch ((columns + PER_VECTOR - 1) / PER_VECTOR) {
#if TILE_VECTORS_4
            case 4: TILES(4); break;
            case 3: TILES(3); break;
#endif
            case 2: TILES(2); break;
            default: TILES(1);
            }
#undef TILES
        }
}
