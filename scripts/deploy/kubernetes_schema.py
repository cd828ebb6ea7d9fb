"""Objects of Kubernetes against the published schemas: schemas/kubernetes-RELEASE.json, and of a JobSet its
custom resource's definition, where the caller has the file."""

import copy
import json
import pathlib

FILE = pathlib.Path(__file__).resolve().parent / "schemas/kubernetes-1.30.json"
NAMES = {
    "ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "DaemonSet": "io.k8s.api.apps.v1.DaemonSet",
    "JobTemplate": "io.k8s.api.batch.v1.JobTemplateSpec",
    "Service": "io.k8s.api.core.v1.Service",
}


def closed(schema):
    """The schema with no key but those that it names, as the server with strict validation."""
    if isinstance(schema, list):
        return [closed(it) for it in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: closed(value) for key, value in schema.items()}
    # A value that is a number or a string is said in two ways: OpenAPI before version 3 has no words for it, and a
    # custom resource has its own.
    if schema.get("format") == "int-or-string":
        schema["type"] = ["string", "integer"]
    if schema.pop("x-kubernetes-int-or-string", False):
        schema.pop("type", None)
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema and "type" in schema:
        schema["additionalProperties"] = False
    return schema


def definition(kind):
    definitions = closed(json.loads(FILE.read_text())["definitions"])
    return {"$ref": f"#/definitions/{NAMES[kind]}", "definitions": definitions}


def places(value, path=()):
    """The path of everything in an object, itself included."""
    yield path
    for key, below in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(below, (*path, key))


def with_mistake(value, path):
    """A copy with a key that nobody knows in the map at the path, or with what no field takes in its place."""
    holder = whole = copy.deepcopy({"": value})
    path = ("", *path)
    for key in path[:-1]:
        holder = holder[key]
    if isinstance(holder[path[-1]], dict):
        holder[path[-1]]["nobody knows it"] = [{}]
    else:
        holder[path[-1]] = {"no": [{}]}
    return whole[""]


def fits(value, schema):
    """Raises where it does not, and where the schema would take a mistake at any place of it. How many."""
    import jsonschema

    check = jsonschema.Draft4Validator(schema)
    for problem in check.iter_errors(value):
        raise AssertionError(f"{'/'.join(map(str, problem.absolute_path))}: {problem.message}")
    checked = 0
    for path in places(value):
        if check.is_valid(with_mistake(value, path)):
            raise AssertionError(f"{'/'.join(map(str, path))} is held against nothing")
        checked += 1
    return checked
