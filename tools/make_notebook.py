#!/usr/bin/env python3
"""Makes examples/torch/flex_attention.ipynb of flex_attention.py beside it, and runs notebooks.

usage: tools/make_notebook.py [--check]

A comment `# ---- Title.` of the script begins a cell. The script's arguments become one cell of
settings. What the cells print is kept but for measured times, which are those of one machine.
--check writes nothing: status 1 where the file is not what would be made, its outputs included.
"""

import argparse
import contextlib
import io
import json
import pathlib
import re
import sys

SCRIPT = pathlib.Path(__file__, "../../examples/torch/flex_attention.py").resolve()
NOTEBOOK = SCRIPT.with_suffix(".ipynb")
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
    """What each of the cells prints, in one namespace, without times."""
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
        stream = {"name": "stdout", "output_type": "stream", "text": lines(output)}
        heading = f"{'##' if i else '#'} {title.removesuffix('.')}"
        made += [
            {"cell_type": "markdown", "id": f"title-{i}", "metadata": {}, "source": [heading]},
            {
                "cell_type": "code",
                "execution_count": i + 1,
                "id": f"code-{i}",
                "metadata": {},
                "outputs": [stream] if output else [],
                "source": lines(code),
            },
        ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def lines(text):
    return text.splitlines(keepends=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    text = notebook_of(SCRIPT.read_text())
    if check and text != NOTEBOOK.read_text():
        sys.exit(f"make_notebook.py: {NOTEBOOK} is not what {SCRIPT.name} makes: run {__file__}")
    if not check:
        NOTEBOOK.write_text(text)
    print(f"{NOTEBOOK.name}: {text.count('code-')} cells of code")


if __name__ == "__main__":
    main()
