#!/usr/bin/env python3
"""Cuts out of Kubernetes' published OpenAPI what the files of config/kubernetes can reach.

    cut.py SWAGGER >FILE    SWAGGER: api/openapi-spec/swagger.json of a release

Names, types and what is required are kept; descriptions and what only servers and their clients' generators
read are not. One property on a line, so that two releases can be compared.
"""

import json
import sys

KINDS = (
    "io.k8s.api.apps.v1.DaemonSet",
    "io.k8s.api.batch.v1.JobTemplateSpec",  # in a JobSet
    "io.k8s.api.core.v1.ConfigMap",
    "io.k8s.api.core.v1.Service",
)
KEPT = ("$ref", "additionalProperties", "enum", "format", "items", "pattern", "properties", "required", "type")


def cut(schema, reached):
    """The schema without words; the names that it refers to are added to reached."""
    kept = {key: value for key, value in schema.items() if key in KEPT}
    if "$ref" in kept:
        reached.append(kept["$ref"].split("/")[-1])
    for key in ("items", "additionalProperties"):
        if isinstance(kept.get(key), dict):
            kept[key] = cut(kept[key], reached)
    if "properties" in kept:
        kept["properties"] = {name: cut(value, reached) for name, value in kept["properties"].items()}
    return kept


def text(definition):
    """JSON in lines."""
    rest = json.dumps({key: value for key, value in definition.items() if key != "properties"})
    if "properties" not in definition:
        return rest
    lines = (f"   {json.dumps(name)}: {json.dumps(value)}" for name, value in definition["properties"].items())
    return f'{rest[:-1]},\n  "properties": {{\n' + ",\n".join(lines) + "}}"


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        definitions = json.load(file)["definitions"]
    reached, found = list(KINDS), {}
    while reached:
        name = reached.pop()
        if name not in found:
            found[name] = cut(definitions[name], reached)
    print('{"definitions": {\n' + ",\n".join(f' "{name}": {text(found[name])}' for name in sorted(found)) + "\n}}")


if __name__ == "__main__":
    main()
