"""Put the explorer's page on the mechanism of attention, which needs no server, into the documentation."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "src" / "regard" / "explorer" / "page"
FIRST = ["mechanism.html", "style.css", "icon.svg", "mechanism_page.js"]


def page_files() -> list[str]:
    """The files of the page: the first ones and every module that they import."""
    names = list(FIRST)
    for name in names:  # grows inside
        text = (PAGE / name).read_text(encoding="utf-8")
        names += [found for found in re.findall(r'from "\./(\w+\.js)"', text) if found not in names]
    return list(dict.fromkeys(names))


def on_files(files, config):  # noqa: ANN001, ANN201 (a hook of mkdocs)
    from mkdocs.structure.files import File

    for name in page_files():
        files.append(File.generated(config, f"mechanism/{name}", abs_src_path=str(PAGE / name)))
    return files
