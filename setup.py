"""All is said in pyproject.toml but this: what a package index shows is the README without links that lead nowhere."""

import re
from typing import Any

from setuptools import Distribution, setup

LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:|#)([^)]+)\)")  # to a file of the project


class Project(Distribution):
    """Relative links of the README lead to the address that [project.urls] gives as Source; without one, they go."""

    def parse_config_files(self, *given: Any, **named: Any) -> None:
        super().parse_config_files(*given, **named)
        source = (self.metadata.project_urls or {}).get("Source")
        link = rf"[\1]({source}/blob/main/\2)" if source else r"\1"
        self.metadata.long_description = LINK.sub(link, self.metadata.long_description or "")


setup(distclass=Project)
