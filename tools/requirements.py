"""Prints the packages of one extra of pyproject.toml, a line each, for `pip install -r`."""

import sys

import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
for requirement in [*project["dependencies"], *project["optional-dependencies"][sys.argv[1]]]:
    if not requirement.startswith("torch"):
        print(requirement)
