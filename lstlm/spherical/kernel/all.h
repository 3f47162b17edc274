#include "rows.h"

#include "product.h"

#include "layers.h"

#include "history.h"

#include "frame.h"

#include "low_rank.h"
