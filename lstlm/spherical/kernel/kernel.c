/* What a step of training consists of, compiled; native.py loads it.
 *
 * Each function stands beside Python that gives the same result and is what it is tested against. Matrices are
 * row-major; products are those of product.h. Nothing here keeps a state. The parts are included once for each type of
 * number.
 */
#include "common.h"

#include "losses.h"

#define REAL float
#define TYPE float32
#include "all.h"
#undef REAL
#undef TYPE
#define REAL double
#define TYPE float64
#include "all.h"
