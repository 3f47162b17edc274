/* What a step of training does between its products, compiled; native.py loads it.
 *
 * Each function stands beside Python that gives the same result and is what it is tested against. Matrices are
 * row-major, the products are those of the BLAS library that PyTorch has loaded. Nothing here keeps a state. The parts are
 * included once for each type of number.
 */
#include "common.h"

#define REAL float
#define TYPE float32
#include "all.h"
#undef REAL
#undef TYPE
#define REAL double
#define TYPE float64
#include "all.h"
