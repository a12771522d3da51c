"""Hooks of mkdocs (mkdocs.yml): the generated pages of the reference, the source files that pages
link to as pages of the site, and folders in the navigation.
"""

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
    """Drops griffe's warning about `*FUNCTIONS` in __all__: docs/reference/ops.md lists these."""

    def filter(self, record):
        return "__all__: FUNCTIONS" not in record.getMessage()


for name in ("griffe", "mkdocs.plugins.griffe"):
    logging.getLogger(name).addFilter(_NamesMadeAtRunTime())


def outside(page, link):
    """The file or folder outside of docs/ that a page links to, relative to the checkout."""
    target = pathlib.Path(os.path.normpath(page.parent / link))
    return None if target.is_relative_to(DOCS) else target.relative_to(ROOT)


def source_page(path):
    """Where the site has a file of the checkout."""
    return f"source/{path}.md"


def source_text(path):
    target = ROOT / path
    if target.is_dir():
        names = sorted(p.name for p in target.iterdir() if not p.name.startswith((".", "__")))
        return "\n".join([f"# {path}", "", *(f"- `{name}`" for name in names)])
    if target.suffix == ".md":
        # Its links lead about the checkout; here they are only text.
        return re.sub(r"\[([^\]]*)\]\((?![a-z]+:)[^)]*\)", r"\1", target.read_text())
    fence = "`" * 4
    language = LANGUAGES.get(target.suffix, "text")
    return f"# {path}\n\n{fence}{language}\n{target.read_text()}\n{fence}\n"


def on_config(config):
    """`folder/` in the navigation stands for the pages of that folder."""

    def expand(item):
        if isinstance(item, dict):
            return {name: expand(value) for name, value in item.items()}
        if isinstance(item, list):
            parts = [expand(value) for value in item]
            return [page for part in parts for page in (part if isinstance(part, list) else [part])]
        if item == "reference/cpp/":
            return [{f"tilewright/{name}.h": f"reference/cpp/{name}.md"} for name in cpp_pages()]
        if item.endswith("/"):
            return [str(p.relative_to(DOCS)) for p in sorted((DOCS / item).glob("*.md"))]
        return item

    config.nav = expand(config.nav)
    return config


_cpp = {}


def cpp_pages():
    _cpp.update(_cpp or cpp_reference.pages())
    return _cpp


def on_files(files, config):
    for name, text in cpp_pages().items():
        files.append(File.generated(config, f"reference/cpp/{name}.md", content=text))
    for module, title in PYTHON.items():
        text = f"# {title}: `{module}`\n\n::: {module}\n"
        files.append(File.generated(config, f"reference/python-api/{module}.md", content=text))
    linked = set()
    for page in DOCS.rglob("*.md"):
        for link, _ in LINK.findall(page.read_text()):
            if path := outside(page, link):
                linked.add(path)
    for path in sorted(linked):
        files.append(File.generated(config, source_page(path), content=source_text(path)))
    return files


def on_page_markdown(markdown, page, **_):
    """Links that leave docs/ lead to the site's copy of the file."""
    here = pathlib.Path(page.file.src_path)
    if not (DOCS / here).exists():
        return markdown

    def replaced(match):
        path = outside(DOCS / here, match[1])
        if path is None:
            return match[0]
        return f"]({os.path.relpath(source_page(path), here.parent)})"

    return LINK.sub(replaced, markdown)
