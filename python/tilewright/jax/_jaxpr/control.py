"""Rules of control flow and of calls."""

from .._versions import expanded, scan_sizes
from .elementwise import aval_of, cast, elementwise
from .refs import Dim, View, i64, load, store
from .shapes import check_tile, reshape
from .text import UnsupportedError, Value, ir_dtype, type_text
from .translate import inner_jaxpr, rule

# ---- Calls.


@rule("jit", "pjit", "closed_call", "core_call", "eval_jaxpr", "remat", "checkpoint", "remat2",
      "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "jaxpr_call", "custom_lin",
      "run_state", "core_closed_call", "mpmd_call")  # fmt: skip
def _call(t, eqn, *args):
    name = str(eqn.params.get("name", ""))
    if name in ("floor_divide", "remainder") and len(args) == 2:
        quick = _integer_division(t, eqn, name, *args)
        if quick is not None:
            return quick
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if key in eqn.params:
            return t.evaluate(eqn.params[key], *args)
    raise UnsupportedError("a call without a jaxpr")


@rule("call_hi_primitive")
def _call_hi_primitive(t, eqn, *args):
    return t.evaluate(expanded(eqn), *args)


def _integer_division(t, eqn, name, a, b):
    """jnp's // and %, which come as a dozen operations."""
    dtype = eqn.outvars[0].aval.dtype
    if dtype.kind not in "iu" or not b.is_constant or b.constant == 0:
        return None
    op = "floordiv" if name == "floor_divide" else "floormod"
    shape = tuple(eqn.outvars[0].aval.shape)
    b = cast(t, b, a.dtype)
    return elementwise(t, op, [a, b], a.dtype, shape)


# ---- Loops.


def _as_carry(value):
    if isinstance(value, View):
        raise UnsupportedError("a Ref as the carry of a loop")
    return value


def counters(closed, num_consts, num_carry):
    """{carry: step} of the integer scalars that a loop body only counts up by a constant."""
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


def emit_for(t, low, high, carried, body):
    """for_loop with step 1; body(iv, carries) gives the next carries. Returns the results."""
    writer = t.writer
    names = [writer.use(v) for v in (low, high, t.constant(1, "i64"))]
    inits = [writer.use(value) for value in carried]
    iv = Value("i64", (), name=writer.fresh())
    arguments = [Value(v.dtype, v.shape, name=writer.fresh()) for v in carried]
    results = [Value(v.dtype, v.shape, name=writer.fresh()) for v in carried]
    pairs = ", ".join(f"{a.name} = {init}" for a, init in zip(arguments, inits, strict=True))
    head = f"for_loop {iv.name} = {', '.join(names)}" + (f" carry ({pairs})" if pairs else "")
    writer.open(_results_text(results) + head + _types_text(results))
    with t.guarded():
        _emit_yield(t, body(iv, arguments), carried)
    writer.close()
    return results


def _results_text(results):
    return ", ".join(r.name for r in results) + " = " if results else ""


def _types_text(results):
    types = ", ".join(type_text(r.dtype, r.shape) for r in results)
    return f" : {types}" if results else ""


def _emit_yield(t, values, like):
    names = []
    for value, wanted in zip(values, like, strict=True):
        if value.dtype != wanted.dtype or value.shape != wanted.shape:
            raise UnsupportedError(f"a carry that changes from {wanted.dtype} to {value.dtype}")
        names.append(t.writer.use(value))
    t.writer.line("yield" + (" " + ", ".join(names) if names else ""))


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
                rank = t.writer.emit("sub", [iv, low], "i64", ())
            if step != 1:
                rank = t.writer.emit("mul", [rank, t.constant(step, "i64")], "i64", ())
            value = rank
            if not (start.is_constant and start.constant == 0):
                value = t.writer.emit("add", [rank, i64(t, start)], "i64", ())
        return cast(t, value, start.dtype)

    def body(iv, arguments):
        carries = list(init)
        for place, argument in zip(kept, arguments, strict=True):
            carries[place] = argument
        for i in counted:
            carries[i] = counter(i, iv)
        outs = t.evaluate(closed, *consts, *carries)
        return [outs[i] for i in kept]

    results = emit_for(t, low, high, [init[i] for i in kept], body)
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
    low, high = t.constant(0, "i64"), t.constant(length, "i64")
    finals = _run_counted(t, params["jaxpr"], consts, init, low, high, counted, None)
    return _with_counters(t, eqn, init, finals, counted, high)


def _with_counters(t, eqn, init, finals, counted, trips):
    """The last values of counters that are used after the loop."""
    for i, step in counted.items():
        if not t.is_used(eqn.outvars[i]):
            continue
        start = init[i]
        if trips.is_constant and start.is_constant:
            finals[i] = t.constant(start.constant + step * trips.constant, start.dtype)
            continue
        by = t.writer.emit("mul", [trips, t.constant(step, "i64")], "i64", ())
        total = t.writer.emit("add", [i64(t, start), by], "i64", ())
        finals[i] = cast(t, total, start.dtype)
    return finals


def _row(view, iv):
    first = Dim("scalar", iv)
    return View(view.ref, view.dtype, (first, *view.dims[1:]))


def _scan_rows(t, eqn, consts, init, xs):
    """A scan over rows of tiles: they go through memory of the program."""
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
            place = t.writer.emit("sub", [t.constant(length - 1, "i64"), iv], "i64", ())
        rows = [load(t, _row(view, place)) for view in sources]
        outs = t.evaluate(params["jaxpr"], *consts, *carries, *rows)
        for view, value in zip(targets, outs[num_carry:], strict=True):
            store(t, _row(view, place), value)
        return outs[:num_carry]

    low, high = t.constant(0, "i64"), t.constant(length, "i64")
    results = emit_for(t, low, high, init, body)
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
            trips = t.writer.emit("sub", [high, low], "i64", ())
            trips = t.writer.emit("max", [trips, t.constant(0, "i64")], "i64", ())
            finals = _with_counters(t, eqn, init, finals, counted, trips)
        return finals
    return emit_while(
        t,
        init,
        lambda carries: t.evaluate(params["cond_jaxpr"], *cond_consts, *carries)[0],
        lambda carries: t.evaluate(params["body_jaxpr"], *body_consts, *carries),
    )


def _as_for(params, init, cond_consts):
    """(carry that counts, bound, counters) of a while loop that fori_loop made; else None."""
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


def emit_while(t, init, condition, body):
    """while_loop; condition(carries) gives a bool, body(carries) the next carries."""
    writer = t.writer
    inits = [writer.use(value) for value in init]
    tested = [Value(v.dtype, v.shape, name=writer.fresh()) for v in init]
    results = [Value(v.dtype, v.shape, name=writer.fresh()) for v in init]
    pairs = ", ".join(f"{a.name} = {b}" for a, b in zip(tested, inits, strict=True))
    carry = f" carry ({pairs})" if pairs else ""
    writer.open(f"{_results_text(results)}while_loop{carry}{_types_text(results)}")
    with t.guarded():
        again = reshape(t, condition(tested), ())
    writer.line(f"yield {writer.use(again)}")
    inner = [Value(v.dtype, v.shape, name=writer.fresh()) for v in init]
    writer.between(f"do ({', '.join(v.name for v in inner)})")
    with t.guarded():
        _emit_yield(t, body(inner), init)
    writer.close()
    return results


# ---- Branches.


@rule("cond")
def _cond(t, eqn, which, *args):
    branches = eqn.params["branches"]
    if which.is_constant:
        taken = min(max(int(which.constant), 0), len(branches) - 1)
        return t.evaluate(branches[taken], *args)
    condition = which if which.dtype == "bool" else which.truth
    if condition is not None and len(branches) == 2:
        return _emit_if(t, eqn, condition, branches[1], branches[0], args)
    return _emit_switch(t, eqn, which, list(branches), 0, args)


def _emit_switch(t, eqn, which, branches, first, args):
    if len(branches) == 1:
        return t.evaluate(branches[0], *args)
    here = elementwise(t, "le", [which, t.like(which, first)], "bool", ())
    rest = lambda: _emit_switch(t, eqn, which, branches[1:], first + 1, args)  # noqa: E731
    return _emit_branches(t, eqn, here, lambda: t.evaluate(branches[0], *args), rest)


def _emit_if(t, eqn, condition, then_jaxpr, else_jaxpr, args):
    return _emit_branches(
        t,
        eqn,
        condition,
        lambda: t.evaluate(then_jaxpr, *args),
        lambda: t.evaluate(else_jaxpr, *args),
    )


def _emit_branches(t, eqn, condition, then_branch, else_branch):
    like = [Value(*aval_of(eqn, i)) for i in range(len(eqn.outvars))]
    results = [Value(v.dtype, v.shape, name=t.writer.fresh()) for v in like]
    name = t.writer.use(reshape(t, condition, ()))
    t.writer.open(f"{_results_text(results)}if_else {name}{_types_text(results)}")
    with t.guarded(condition):
        _emit_yield(t, then_branch(), like)
    t.writer.between("else")
    with t.guarded():
        _emit_yield(t, else_branch(), like)
    t.writer.close()
    return results
