"""What the documentation site takes from the package itself: the table of recipes."""

from typing import Any

from lstlm.config import recipes


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the recipes, one a row, where a page says so."""
    rows = [f"| `{name}` | {title} |" for name, title in recipes().items()]
    return markdown.replace("<!-- recipes -->", "\n".join(["| recipe | trains |", "|---|---|", *rows]))
