"""Put pages of the explorer that need no server into the documentation: the mechanism of attention, and
with a bundled translator the explorer itself.
"""

import re
import tempfile
from pathlib import Path

PAGE = Path(__file__).parents[2] / "src" / "regard" / "explorer" / "page"
FIRST = ["mechanism.html", "style.css", "icon.svg", "mechanism_page.js"]
LINK = "<!-- static explorer -->"  # in docs/explorer.md, where the link to the explorer goes
_temporary = tempfile.TemporaryDirectory()


def page_files() -> list[str]:
    """The files of the page: the first ones and every module that they import."""
    names = list(FIRST)
    for name in names:  # grows inside
        text = (PAGE / name).read_text(encoding="utf-8")
        names += [found for found in re.findall(r'from "\./(\w+\.js)"', text) if found not in names]
    return list(dict.fromkeys(names))


def explorer_site() -> Path | None:
    """Write the site of the default translator; None if there is none."""
    from regard.errors import OptionError
    from regard.explorer.static_site import write_site
    from regard.models.default import default_model
    from regard.models.folder import load

    try:
        folder = default_model("translate")
    except OptionError:  # no translator is bundled
        return None
    model, site = load(folder), Path(_temporary.name) / "explorer"
    write_site(site, model, model.card.get("name") or folder.name, overwrite=True)
    return site


def on_files(files, config):  # noqa: ANN001, ANN201 (a hook of mkdocs)
    from mkdocs.structure.files import File

    for name in page_files():
        files.append(File.generated(config, f"mechanism/{name}", abs_src_path=str(PAGE / name)))
    config.extra["explorer"] = site = explorer_site()
    for path in [] if site is None else filter(Path.is_file, site.rglob("*")):
        name = f"explore/{path.relative_to(site).as_posix()}"
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):  # noqa: ANN001, ANN201 (a hook of mkdocs)
    link = 'Open it here: <a href="../explore/index.html">the explorer with the bundled translator</a>.'
    return markdown.replace(LINK, link if config.extra["explorer"] else "")
