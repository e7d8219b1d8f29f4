"""Shows the reports of the studies, which lie outside of the documentation, as pages of it.

On a page, `../../studies/reports/NAME.md` is the path of a report in the repository, so that links
work there, too. Here it becomes that of a copy.
"""

from pathlib import Path

FOLDER = "studies/reports"


def copy_reports(app):
    """Copies the reports into `docs/studies/reports`, and removes those that no longer exist."""
    source, target = Path(app.srcdir).parent / FOLDER, Path(app.srcdir) / FOLDER
    target.mkdir(exist_ok=True)
    reports = {path.name: path.read_text(encoding="utf-8") for path in source.glob("*.md")}
    for path in target.glob("*.md"):
        if path.name not in reports:
            path.unlink()
    for name, text in reports.items():
        text = "---\norphan: true\n---\n" + text.replace("](../../docs/", "](../../")
        # An unchanged file stays, because Sphinx would read it again.
        path = target / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def link_to_copies(app, docname, source):
    """Makes the links of a page to reports those to their copies."""
    folder = "../" * docname.count("/") + FOLDER
    source[0] = source[0].replace(f"]({'../' * docname.count('/')}../{FOLDER}/", f"]({folder}/")


def setup(app):
    copy_reports(app)
    app.connect("source-read", link_to_copies)
    return {"parallel_read_safe": True}
