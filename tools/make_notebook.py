#!/usr/bin/env python3
"""Makes and runs notebooks from scripts: examples/torch/flex_attention.ipynb, examples/notebooks.

usage: tools/make_notebook.py [--check] [NAME...]

A comment `# ---- Title.` of a script begins a cell. In examples/notebooks lines that begin with
`#:` are text, a comment `# measured` begins a cell whose output is that of one machine, and the
value of a last expression is shown, pictures too. In flex_attention.py the script's arguments
become one cell of settings, and what is printed is kept but for measured times.
--check writes nothing: status 1 where a file is not what would be made, outputs included, other
than measured ones.
"""

import argparse
import ast
import contextlib
import io
import json
import linecache
import pathlib
import re
import sys

EXAMPLES = pathlib.Path(__file__, "../../examples").resolve()
SCRIPT = EXAMPLES / "torch/flex_attention.py"
SCRIPTS = sorted((EXAMPLES / "notebooks").glob("*.py"))
SETTINGS = """\
arguments = SimpleNamespace(
    device="cuda" if torch.cuda.is_available() else "cpu",
    seq_len=1024,
    heads=2,
    batch=1,
    seconds=0.0,  # to measure for, per row
    torch_flex=True,  # a row for torch's own, compiled: on the CPU some 30 seconds for each example
)
"""
TIMES = re.compile(
    r"^(Operation|tilewright|causal SDPA|SDPA \+ mask|torch flex, compiled) .*\n", re.M
)


def cells_of(script):
    """[(title or None, code)] of the script."""
    begin = script.index("arguments = argparse.ArgumentParser(")
    parsed = "arguments = arguments.parse_args()\n"
    end = script.index(parsed) + len(parsed)
    script = script[:begin] + SETTINGS + script[end:]
    script = script.replace(
        "import argparse\nimport random\nimport time\n", "import random\nimport time\n"
    )
    script = script.replace(
        "import lru_cache\n", "import lru_cache\nfrom types import SimpleNamespace\n"
    )
    docstring, _, script = script.removeprefix('"""').partition('"""')
    title, _, _ = docstring.partition("\n")
    first, *rest = re.split(r"^# ---- (.*)\n", script, flags=re.M)
    return [(title, first), *zip(rest[::2], rest[1::2], strict=True)]


def outputs_of(codes, replace=lambda code: code):
    """What each cell prints when run in one namespace, without times."""
    space, outputs = {"__name__": "__main__"}, []
    for code in codes:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(replace(code), "a cell", "exec"), space)
        outputs.append(TIMES.sub("", printed.getvalue()))
    return outputs


def notebook_of(script):
    """The notebook, as text."""
    cells = cells_of(script)
    codes = [code.strip() for _, code in cells]
    outputs = outputs_of(codes, lambda code: code.replace("torch_flex=True", "torch_flex=False"))
    made = []
    for i, ((title, _), code, output) in enumerate(zip(cells, codes, outputs, strict=True)):
        heading = f"{'##' if i else '#'} {title.removesuffix('.')}"
        made += [text_cell(i, heading), code_cell(i, code, [stream(output)] if output else [])]
    return book_of(made)


def text_cell(i, text):
    return {"cell_type": "markdown", "id": f"title-{i}", "metadata": {}, "source": lines(text)}


def code_cell(i, code, outputs, tags=()):
    return {
        "cell_type": "code",
        "execution_count": i + 1,
        "id": f"code-{i}",
        "metadata": {"tags": list(tags)} if tags else {},
        "outputs": outputs,
        "source": lines(code),
    }


def stream(text):
    return {"name": "stdout", "output_type": "stream", "text": lines(text)}


def book_of(cells):
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


# ---- The notebooks of examples/notebooks.

MEASURED = "measured"


def parts_of(script):
    """[(text or None, code or None, is measured)] of a script: its cells, in order."""
    docstring, _, script = script.removeprefix('"""').partition('"""')
    parts, text, code = [], [f"# {docstring.strip()}\n"], []

    def end(kind, held):
        held_text = "\n".join(held).strip()
        if held_text and kind == "text":
            parts.append((held_text, None, False))
        elif held_text:
            measured = held_text.startswith("# measured\n")
            parts.append((None, held_text.removeprefix("# measured\n"), measured))
        held.clear()

    for line in script.splitlines():
        title = line.removeprefix("# ---- ") if line.startswith("# ---- ") else None
        is_text = title is not None or line.startswith("#:")
        if is_text and code:
            end("code", code)
        if line == "# measured":
            end("code", code)
        if title is not None:
            end("text", text)
            text.append(f"## {title}\n")
        elif is_text:
            text.append(line.removeprefix("#:").removeprefix(" "))
        elif line.strip() or code:
            end("text", text)
            code.append(line)
    end("text", text)
    end("code", code)
    return parts


def shown(value, i):
    """What a notebook shows for the value of a last expression."""
    data = {"text/plain": lines(repr(value))}
    if hasattr(value, "_repr_svg_"):
        data["image/svg+xml"] = lines(value._repr_svg_())
    return {
        "data": data,
        "execution_count": i + 1,
        "metadata": {},
        "output_type": "execute_result",
    }


def run_cell(code, i, space, name):
    """The outputs of a cell."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), space)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), space)
    outputs = [stream(printed.getvalue())] if printed.getvalue() else []
    return outputs + ([shown(value, i)] if value is not None else [])


def guide_of(script):
    """A notebook of examples/notebooks, after running it, as text."""
    made, space, number = [], {"__name__": "__main__"}, 0
    for i, (text, code, measured) in enumerate(parts_of(script)):
        if text is not None:
            made.append(text_cell(i, text))
            continue
        outputs = run_cell(code, number, space, f"cell {number + 1}")
        made.append(code_cell(number, code, outputs, [MEASURED] if measured else []))
        number += 1
    return book_of(made)


def without_measured(notebook):
    """The text of a notebook without its measured outputs."""
    book = json.loads(notebook)
    for cell in book["cells"]:
        if MEASURED in cell["metadata"].get("tags", []):
            cell["outputs"] = bool(cell["outputs"])
    return json.dumps(book)


def lines(text):
    return text.splitlines(keepends=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    for script in [SCRIPT, *SCRIPTS]:
        if given.names and script.stem not in given.names:
            continue
        text = (notebook_of if script is SCRIPT else guide_of)(script.read_text())
        notebook = script.with_suffix(".ipynb")
        if given.check and without_measured(text) != without_measured(notebook.read_text()):
            sys.exit(
                f"make_notebook.py: {notebook} is not what {script.name} makes: run {__file__}"
            )
        if not given.check:
            notebook.write_text(text)
        print(f"{notebook.name}: {text.count('code-')} cells of code")


if __name__ == "__main__":
    main()
