"""Rules of control flow."""

from ...._errors import UnsupportedError
from ..._versions import scan_sizes
from ..walker import inner_jaxpr, ir_dtype
from .arithmetic import cast, elementwise
from .program import Value
from .refs import Dim, View, i64, load, store
from .shapes import check_tile, reshape
from .translate import aval_of, rule

# ---- Loops.


def _as_carry(value):
    if isinstance(value, View):
        raise UnsupportedError("a Ref as the carry of a loop")
    return value


def counters(closed, num_consts, num_carry):
    """{carry: step} of the integer scalars that a loop body only increments by a constant."""
    jaxpr, _ = inner_jaxpr(closed)
    carries = jaxpr.invars[num_consts : num_consts + num_carry]
    made = {eqn.outvars[0]: eqn for eqn in jaxpr.eqns if len(eqn.outvars) == 1}
    found = {}
    for i, (var, out) in enumerate(zip(carries, jaxpr.outvars[:num_carry], strict=True)):
        if hasattr(out, "val") or out not in made or var.aval.shape != ():
            continue
        eqn = made[out]
        if eqn.primitive.name != "add" or str(var.aval.dtype) not in ("int32", "int64"):
            continue
        a, b = eqn.invars
        if a is var and hasattr(b, "val"):
            found[i] = int(b.val)
        elif b is var and hasattr(a, "val"):
            found[i] = int(a.val)
    return found


def for_loop(t, low, high, carried, body):
    """A loop of step 1; body(iv, carries) returns the next carries. Returns the last ones."""

    def step(iv, carries):
        with t.guarded():
            return _like(body(iv, carries), carried)

    return t.program.for_loop(low, high, carried, step)


def while_loop(t, carried, condition, body):
    """condition(carries) returns a bool, body(carries) the next carries. Returns the last ones."""

    def again(carries):
        with t.guarded():
            return reshape(t, condition(carries), ())

    def step(carries):
        with t.guarded():
            return _like(body(carries), carried)

    return t.program.while_loop(carried, again, step)


def _like(values, wanted):
    """The values; refuses those whose types are not the wanted ones."""
    for value, like in zip(values, wanted, strict=True):
        if value.dtype != like.dtype or value.shape != like.shape:
            raise UnsupportedError(f"a carry that changes from {like.dtype} to {value.dtype}")
    return values


def _run_counted(t, closed, consts, init, low, high, counted, base):
    """A loop over iv in [low, high) whose carries `counted` are base + (iv - low) * step."""
    kept = [i for i in range(len(init)) if i not in counted]

    def counter(i, iv):
        step = counted[i]
        start = init[i]
        if i == base:
            value = iv
        else:
            rank = iv
            if not (low.is_constant and low.constant == 0):
                rank = t.program.emit("sub", [iv, low], "i64", ())
            if step != 1:
                rank = t.program.emit("mul", [rank, t.number(step, "i64")], "i64", ())
            value = rank
            if not (start.is_constant and start.constant == 0):
                value = t.program.emit("add", [rank, i64(t, start)], "i64", ())
        return cast(t, value, start.dtype)

    def body(iv, arguments):
        carries = list(init)
        for place, argument in zip(kept, arguments, strict=True):
            carries[place] = argument
        for i in counted:
            carries[i] = counter(i, iv)
        outs = t.evaluate(closed, *consts, *carries)
        return [outs[i] for i in kept]

    results = for_loop(t, low, high, [init[i] for i in kept], body)
    finals = list(init)
    for place, result in zip(kept, results, strict=True):
        finals[place] = result
    return finals


@rule("scan")
def _scan(t, eqn, *operands):
    params = eqn.params
    length, (num_consts, num_carry) = params["length"], scan_sizes(params)
    consts = operands[:num_consts]
    init = [_as_carry(v) for v in operands[num_consts : num_consts + num_carry]]
    xs = operands[num_consts + num_carry :]
    ys_vars = eqn.outvars[num_carry:]
    if xs or ys_vars:
        return _scan_rows(t, eqn, consts, init, xs)
    counted = counters(params["jaxpr"], num_consts, num_carry)
    low, high = t.number(0, "i64"), t.number(length, "i64")
    finals = _run_counted(t, params["jaxpr"], consts, init, low, high, counted, None)
    return _with_counters(t, eqn, init, finals, counted, high)


def _with_counters(t, eqn, init, finals, counted, trips):
    """The results of a loop, with final values for the counters that are used after it."""
    for i, step in counted.items():
        if not t.is_used(eqn.outvars[i]):
            continue
        start = init[i]
        if trips.is_constant and start.is_constant:
            finals[i] = t.number(start.constant + step * trips.constant, start.dtype)
            continue
        by = t.program.emit("mul", [trips, t.number(step, "i64")], "i64", ())
        total = t.program.emit("add", [i64(t, start), by], "i64", ())
        finals[i] = cast(t, total, start.dtype)
    return finals


def _row(view, iv):
    first = Dim("scalar", iv)
    return View(view.ref, view.dtype, (first, *view.dims[1:]))


def _scan_rows(t, eqn, consts, init, xs):
    """A scan over rows of tiles, which go through the program's memory."""
    params = eqn.params
    length = params["length"]
    _, num_carry = scan_sizes(params)
    sources = []
    for x in xs:
        view = t.scratch(x.dtype, x.shape)
        store(t, view, x)
        sources.append(view)
    targets = []
    for var in eqn.outvars[num_carry:]:
        check_tile(var.aval.shape)
        targets.append(t.scratch(ir_dtype(var.aval.dtype), tuple(var.aval.shape)))

    def body(iv, carries):
        place = iv
        if params["reverse"]:
            place = t.program.emit("sub", [t.number(length - 1, "i64"), iv], "i64", ())
        rows = [load(t, _row(view, place)) for view in sources]
        outs = t.evaluate(params["jaxpr"], *consts, *carries, *rows)
        for view, value in zip(targets, outs[num_carry:], strict=True):
            store(t, _row(view, place), value)
        return outs[:num_carry]

    low, high = t.number(0, "i64"), t.number(length, "i64")
    results = for_loop(t, low, high, init, body)
    return results + [load(t, view) for view in targets]


@rule("while")
def _while(t, eqn, *operands):
    params = eqn.params
    cond_nconsts, body_nconsts = params["cond_nconsts"], params["body_nconsts"]
    cond_consts = operands[:cond_nconsts]
    body_consts = operands[cond_nconsts : cond_nconsts + body_nconsts]
    init = [_as_carry(v) for v in operands[cond_nconsts + body_nconsts :]]
    matched = _as_for(params, init, cond_consts)
    if matched is not None:
        place, bound, counted = matched
        low, high = i64(t, init[place]), i64(t, bound)
        finals = _run_counted(t, params["body_jaxpr"], body_consts, init, low, high, counted, place)
        if any(t.is_used(eqn.outvars[i]) for i in counted):
            trips = t.program.emit("sub", [high, low], "i64", ())
            trips = t.program.emit("max", [trips, t.number(0, "i64")], "i64", ())
            finals = _with_counters(t, eqn, init, finals, counted, trips)
        return finals
    return while_loop(
        t,
        init,
        lambda carries: t.evaluate(params["cond_jaxpr"], *cond_consts, *carries)[0],
        lambda carries: t.evaluate(params["body_jaxpr"], *body_consts, *carries),
    )


def _as_for(params, init, cond_consts):
    """(counting carry, bound, counters) of a while loop that fori_loop made; else None."""
    cond, _ = inner_jaxpr(params["cond_jaxpr"])
    body, _ = inner_jaxpr(params["body_jaxpr"])
    if len(cond.eqns) != 1 or cond.eqns[0].primitive.name != "lt":
        return None
    if cond.outvars[0] is not cond.eqns[0].outvars[0]:
        return None
    left, right = cond.eqns[0].invars
    offset = params["cond_nconsts"]
    carries = list(cond.invars[offset:])
    counted = counters(params["body_jaxpr"], params["body_nconsts"], len(init))
    if left not in carries or counted.get(carries.index(left)) != 1:
        return None
    if hasattr(right, "val"):
        bound = Value("i64", (), constant=int(right.val))
    elif right in cond.invars[:offset]:
        bound = cond_consts[list(cond.invars).index(right)]
    else:
        at = carries.index(right)
        if body.outvars[at] is not body.invars[params["body_nconsts"] + at]:
            return None
        bound = init[at]
    return carries.index(left), bound, counted


# ---- Branches.


@rule("cond")
def _cond(t, eqn, which, *args):
    branches = eqn.params["branches"]
    if which.is_constant:
        taken = min(max(int(which.constant), 0), len(branches) - 1)
        return t.evaluate(branches[taken], *args)
    condition = which if which.dtype == "bool" else which.truth
    if condition is not None and len(branches) == 2:
        no, yes = branches
        return _branches(
            t, eqn, condition, lambda: t.evaluate(yes, *args), lambda: t.evaluate(no, *args)
        )
    return _switch(t, eqn, which, list(branches), 0, args)


def _switch(t, eqn, which, branches, first, args):
    if len(branches) == 1:
        return t.evaluate(branches[0], *args)
    here = elementwise(t, "le", [which, t.like(which, first)], "bool", ())
    rest = lambda: _switch(t, eqn, which, branches[1:], first + 1, args)  # noqa: E731
    return _branches(t, eqn, here, lambda: t.evaluate(branches[0], *args), rest)


def _branches(t, eqn, condition, then_branch, else_branch):
    like = [Value(*aval_of(eqn, i)) for i in range(len(eqn.outvars))]

    def guarded(branch, condition=None):
        with t.guarded(condition):
            return _like(branch(), like)

    return t.program.if_else(
        reshape(t, condition, ()),
        like,
        lambda: guarded(then_branch, condition),
        lambda: guarded(else_branch),
    )
