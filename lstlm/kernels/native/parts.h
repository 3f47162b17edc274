#include "gemm.h"

#include "rows.h"

#include "bags.h"

#include "layers.h"

#include "frame.h"

#include "history.h"

#include "low_rank.h"

#include "square.h"

#include "softmax.h"

#include "classes.h"
