// Everything of Tilewright's C++ API.
#pragma once

#include "tilewright/attention.h"
#include "tilewright/compiler.h"
#include "tilewright/error.h"
#include "tilewright/files.h"
#include "tilewright/lang.h"
#include "tilewright/mask.h"
#include "tilewright/masks.h"
#include "tilewright/mod.h"
#include "tilewright/norm.h"
#include "tilewright/program.h"
#include "tilewright/recording.h"
#include "tilewright/run.h"
#include "tilewright/scores.h"
#include "tilewright/system.h"
#include "tilewright/tensor.h"
