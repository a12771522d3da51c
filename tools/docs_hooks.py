"""Hooks for mkdocs (mkdocs.yml): generated reference pages, site pages for the source files that
pages link to, and folders in the navigation.
"""

import ast
import logging
import os
import pathlib
import re
import sys

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import cpp_reference  # noqa: E402

DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(((?:\.\./)+[^)\s#]+)(#[^)\s]*)?\)")
LANGUAGES = {
    **{".cpp": "cpp", ".h": "cpp", ".inl": "cpp", ".cuh": "cpp", ".c": "c", ".py": "python"},
    **{".sh": "sh", ".txt": "cmake", ".yml": "yaml", ".svg": "xml", "": "sh"},
}
PYTHON = {
    "tilewright": "Arrays of NumPy and DLPack",
    "tilewright.masks": "The library of masks",
    "tilewright.scores": "The library of score mods",
    "tilewright.torch": "PyTorch",
    "tilewright.jax": "JAX",
}


class _NamesMadeAtRunTime(logging.Filter):
    """Drops griffe's warning about `*FUNCTIONS` in __all__, listed by
    functions_made_at_run_time."""

    def filter(self, record):
        return "__all__: FUNCTIONS" not in record.getMessage()


for name in ("griffe", "mkdocs.plugins.griffe"):
    logging.getLogger(name).addFilter(_NamesMadeAtRunTime())


def outside(page, link):
    """The file or folder outside of docs/ that a page links to, relative to the checkout."""
    target = pathlib.Path(os.path.normpath(page.parent / link))
    return None if target.is_relative_to(DOCS) else target.relative_to(ROOT)


def source_page(path):
    """The site's path for a file of the checkout."""
    return f"source/{path}.md"


def markdown_of(path, text):
    """A page for a file of the checkout: its links into docs/ are kept, others become text."""
    here = pathlib.Path(source_page(path)).parent

    def replaced(match):
        picture, title, link = match[1], match[2], match[3]
        name, _, anchor = link.partition("#")
        to = pathlib.Path(os.path.normpath(ROOT / path.parent / name))
        if re.match(r"[a-z]+:", link):
            return match[0]
        if not name or not to.is_relative_to(DOCS) or not to.is_file():
            return "" if picture else title
        relative = os.path.relpath(to.relative_to(DOCS), here) + (anchor and f"#{anchor}")
        return f"{picture}[{title}]({relative})"

    parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", replaced, part) for part in parts[::2]]
    return "".join(parts)


def source_text(path):
    target = ROOT / path
    if target.is_dir():
        names = sorted(p.name for p in target.iterdir() if not p.name.startswith((".", "__")))
        return "\n".join([f"# {path}", "", *(f"- `{name}`" for name in names)])
    if target.suffix == ".md":
        return markdown_of(path, target.read_text())
    fence = "`" * 4
    language = LANGUAGES.get(target.suffix, "text")
    return f"# {path}\n\n{fence}{language}\n{target.read_text()}\n{fence}\n"


def on_config(config):
    """Replaces `folder/` in the navigation by the folder's pages that are not named elsewhere."""
    named = set(re.findall(r"[\w./-]+\.md", str(config.nav)))

    def expand(item):
        if isinstance(item, dict):
            return {name: expand(value) for name, value in item.items()}
        if isinstance(item, list):
            parts = [expand(value) for value in item]
            return [page for part in parts for page in (part if isinstance(part, list) else [part])]
        if item == "reference/cpp/":
            return [{f"tilewright/{name}.h": f"reference/cpp/{name}.md"} for name in cpp_pages()]
        if item.endswith("/"):
            pages = [str(p.relative_to(DOCS)) for p in sorted((DOCS / item).glob("*.md"))]
            return [page for page in pages if page not in named]
        return item

    config.nav = expand(config.nav)
    return config


BINDING = re.compile(r'def\(\s*"(\w+)",((?:[^";]|"(?:[^"\\]|\\.)*")*)\);')
ARGUMENT = re.compile(r'arg\((?:"(\w+)"|name)\)(?: = ([^,)]+))?')
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')


def bound_functions(library):
    """The functions of a library bound by C++, as Markdown, since static tools do not see them."""
    source = (ROOT / "python" / "src" / "library.cpp").read_text()
    body = source.partition(f"void bind_{library}(")[2].partition("\n}\n")[0]
    forms, documents = {}, {}
    for name, rest in BINDING.findall(body):
        arguments = [
            (argument or "slopes_or_heads")
            + (f"={value.capitalize() if value[0] in 'tf' else value}" if value else "")
            for argument, value in ARGUMENT.findall(rest)
        ]
        forms.setdefault(name, {})[f"{name}({', '.join(arguments)})"] = None
        if text := "".join(TEXT.findall(ARGUMENT.sub("", rest))):
            documents.setdefault(name, []).append(text)
    if not documents or forms.keys() != documents.keys():
        raise ValueError(f"bindings without a docstring: {forms.keys() - documents.keys()}")
    out = []
    for name in sorted(forms):
        out += [f"## {name}", "", "```python", *forms[name], "```", ""]
        out += [line for text in documents[name] for line in (*cpp_reference.prose([text]), "")]
    return "\n".join(out)


def functions_of_the_table():
    """The elementwise functions of the table of operations with their meanings."""
    row = r'^TW_(?:UNARY|APPROXIMABLE|BINARY)\(\w+, (\w+),.*?\.meaning = "([^"]+)"'
    table = (ROOT / "src" / "ir" / "ops.inl").read_text()
    found = re.findall(row, table, re.DOTALL | re.MULTILINE)
    return {name: meaning[0].upper() + meaning[1:] + "." for name, meaning in found}


def functions_made_at_run_time():
    """The functions of tilewright that static tools do not see, with their docstrings."""
    documents, constants = {}, {}
    for file in ("_elementwise.py", "_language.py"):
        for node in ast.parse((ROOT / "python" / "tilewright" / file).read_text()).body:
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            name, value = node.targets[0].id, node.value
            if name == "_DOCUMENTS":
                documents |= functions_of_the_table()
                own = [(k, v) for k, v in zip(value.keys, value.values, strict=True) if k]
                documents |= {ast.literal_eval(k): ast.literal_eval(v) for k, v in own}
            elif isinstance(value, ast.Constant) and isinstance(value.value, str):
                constants[name] = value.value
            elif isinstance(value, ast.Call) and ast.unparse(value.func) in _FACTORIES:
                signature = _FACTORIES[ast.unparse(value.func)].format(name)
                text = eval(ast.unparse(value.args[1]), {}, constants)
                documents[signature] = text
    rows = [f"| `{name}` | {cpp_reference.prose([text])[0]} |" for name, text in documents.items()]
    return "\n".join(["## Functions of tiles and scalars", "", "| | |", "|---|---|", *rows])


# Functions that make functions in _language.py, and how the results are called.
_FACTORIES = {
    "_atomic": "{}(ref, index, value, *, mask=None)",
    "_reduction": "{}(x, axis=None, keepdims=False)",
}
_cpp = {}


def cpp_pages():
    _cpp.update(_cpp or cpp_reference.pages())
    return _cpp


def on_files(files, config):
    for name, text in cpp_pages().items():
        files.append(File.generated(config, f"reference/cpp/{name}.md", content=text))
    for module, title in PYTHON.items():
        text = f"# {title}: `{module}`\n\n::: {module}\n"
        if module == "tilewright":
            text += "\n" + functions_made_at_run_time()
        elif module in ("tilewright.masks", "tilewright.scores"):
            text += "\n" + bound_functions(module.partition(".")[2])
        files.append(File.generated(config, f"reference/python-api/{module}.md", content=text))
    linked = set()
    for page in DOCS.rglob("*.md"):
        for link, _ in LINK.findall(page.read_text()):
            if path := outside(page, link):
                linked.add(path)
    for path in sorted(linked):
        text = "---\nsearch: {exclude: true}\n---\n" + source_text(path)
        files.append(File.generated(config, source_page(path), content=text))
    return files


def on_page_markdown(markdown, page, **_):
    """Makes links that leave docs/ lead to the site's copy of the file."""
    here = pathlib.Path(page.file.src_path)
    if not (DOCS / here).exists():
        return markdown

    def replaced(match):
        path = outside(DOCS / here, match[1])
        if path is None:
            return match[0]
        return f"]({os.path.relpath(source_page(path), here.parent)})"

    return LINK.sub(replaced, markdown)
