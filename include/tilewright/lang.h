// The kernel language: traced tiles, Refs, functions on them, control flow, kernels.
#pragma once

#include "tilewright/lang/combine.h"
#include "tilewright/lang/control.h"
#include "tilewright/lang/functions.h"
#include "tilewright/lang/kernel.h"
#include "tilewright/lang/ops.h"
#include "tilewright/lang/order.h"
#include "tilewright/lang/ref.h"
#include "tilewright/lang/tile.h"
#include "tilewright/lang/vjp.h"
