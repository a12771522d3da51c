"""Which axes of a grid may run in parallel, and which must run in order.

Pallas runs a grid in order on TPUs and in its interpreter, in parallel on GPUs. Compiler parameters
for GPUs, or `dimension_semantics`, declare axes parallel. Without them an axis is parallel if the
accesses to every output prove that no two of its steps touch one element, and runs in order
otherwise."""

from dataclasses import dataclass, field


@dataclass
class Recorder:
    """The kernel's accesses, recorded in a first translation."""

    touches: dict = field(default_factory=dict)  # array -> [(is atomic, dims)], see refs.covered
    first_use: dict = field(default_factory=dict)  # scratch -> (stores all of it, guards)
    guards: list = field(default_factory=list)  # conditions around the current place; None: a loop

    def touch(self, array, atomic, dims):
        self.touches.setdefault(array, []).append((atomic, dims))

    def use_scratch(self, ref, stores_all):
        self.first_use.setdefault(ref, (stores_all, tuple(self.guards)))


def declared_parallel(params, num_axes, num_vmapped):
    """For each axis True if compiler_params declare it parallel; None if they say nothing."""
    kind = f"{type(params).__module__}.{type(params).__name__}" if params is not None else ""
    semantics = getattr(params, "dimension_semantics", None)
    for_gpu = "triton" in kind or "mosaic_gpu" in kind
    if semantics is None:
        return [True if for_gpu or axis < num_vmapped else None for axis in range(num_axes)]
    said = []
    for word in semantics:
        word = str(getattr(word, "name", word)).lower()
        said.append(True if word.endswith("parallel") else None)
    return [True] * (num_axes - len(said)) + said


def _separates(accesses, program_id):
    """Whether steps of an axis touch different elements: along some dimension every access starts
    at the same multiple of the axis's index and stays within one step."""
    for per_access in zip(*accesses, strict=True):
        factors, lows, highs = set(), [], []
        for form, span in per_access:
            terms = form.terms if form is not None else ()
            if len(terms) != 1 or terms[0][0] != program_id:
                break
            factors.add(terms[0][2])
            lows.append(form.offset)
            highs.append(form.offset + span)
        else:
            if len(factors) == 1 and max(highs) - min(lows) <= abs(min(factors)):
                return True
    return False


def sequential_axes(recorder, blocks, program_ids, declared):
    """The axes that must run in order. `blocks`: array -> what its blocks cover, in the form of
    the recorder's accesses; `program_ids`: the id of the scalar that stands for each axis in IndexForms."""
    sequential = []
    for axis, program_id in enumerate(program_ids):
        if declared[axis]:
            continue
        for array, touches in recorder.touches.items():
            if all(atomic for atomic, _ in touches):
                continue
            if _separates(blocks[array], program_id):
                continue
            if not _separates([dims for _, dims in touches], program_id):
                sequential.append(axis)
                break
    in_order = {program_ids[axis] for axis in sequential}
    for stores_all, guards in recorder.first_use.values():
        if not stores_all or any(guard is None or not guard <= in_order for guard in guards):
            # Programs may read what earlier ones left in scratch, so they run in order.
            return [axis for axis in range(len(program_ids)) if not declared[axis]]
    return sequential
