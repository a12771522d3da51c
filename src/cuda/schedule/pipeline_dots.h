// Chained products: what is in flight while threads compute.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Places fences, groups and waits of chained products. Where an iteration of a loop is one product
/// from shared memory, what follows from it, and a product of that, the second product is delayed:
/// it is issued with the first one of the next iteration, so that the tensor cores work while
/// threads compute. acc f(b) + P(b) V(b) delayed is (acc + P(b-1) V(b-1)) f(b): the same terms in
/// the same order. The first iteration's first product is before the loop and the last iteration's
/// second one after it, all under a branch for loops without iterations. Other loops wait for each
/// product.
void pipeline_dots(Program& program);

}  // namespace tilewright::cuda::schedule
