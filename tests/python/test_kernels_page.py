"""Runs the code of docs/reference/kernels-python.md, block by block."""

import pathlib
import re

PAGE = pathlib.Path(__file__, "../../../docs/reference/kernels-python.md").resolve()


def test_the_code_of_the_page_runs():
    text = PAGE.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S))
    assert len(blocks) > 8
    names = {}
    for block in blocks:
        lines_before = text[: block.start(1)].count("\n")
        code = compile("\n" * lines_before + block[1], str(PAGE), "exec")
        exec(code, names)
