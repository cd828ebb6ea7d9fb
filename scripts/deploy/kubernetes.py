#!/usr/bin/env python3
"""The part of check-deploy.sh about Kubernetes: the files of config/kubernetes, without a cluster.

    kubernetes.py BUILD

Each field that the container's test knows is held against the Containerfile, references against what they
name, the configuration against BUILD's shoald, and every field against Kubernetes' published schema. With
SHOAL_JOBSET_CRD, the file of JobSet's definition (jobset.x-k8s.io_jobsets.yaml of its release), the set is
held against that, too. "PASS what" or "FAIL what" for each thing; exit status 77 where PyYAML or jsonschema
is missing.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

try:
    import jsonschema  # noqa: F401  # kubernetes_schema's
    import yaml
except ImportError as problem:
    print(f"kubernetes: {problem.name} is missing", file=sys.stderr)
    sys.exit(77)

import kubernetes_schema  # noqa: E402

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDER = TREE / "config/kubernetes"


class Strict(yaml.SafeLoader):
    """A key that stands twice is a mistake, as for the server."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        if len(keys) != len(set(keys)):
            raise yaml.constructor.ConstructorError(None, None, "a key stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def load(name):
    return list(yaml.load_all((FOLDER / name).read_text(), Strict))


def instruction(name):
    """Return the words behind the instruction in the image's last stage."""
    text = (TREE / "config/container/Containerfile").read_text().replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", text[text.rindex("\nFROM") :], re.MULTILINE)[0]


def is_the_image(pod):
    """User, command, probe and end of the daemon are those of the image that the container's test runs."""
    daemon = pod["containers"][0]
    uid = int(re.search(r"--uid (\d+)", instruction("RUN")).group(1))
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["runAsGroup"] == uid
    assert "command" not in daemon and daemon["args"] == json.loads(instruction("CMD"))
    health = json.loads(re.search(r"CMD (\[.*\])", instruction("HEALTHCHECK")).group(1))
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert daemon[probe]["exec"]["command"] == health, probe
    defaults = json.loads((TREE / "config/full.json").read_text())
    assert pod["terminationGracePeriodSeconds"] * 1000 > defaults["timeouts"]["drain_ms"]


def is_confined(pod):
    for container in pod["initContainers"] + pod["containers"]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"], container["name"]
        assert context["capabilities"]["drop"] == ["ALL"], container["name"]
        assert container["resources"]["limits"]["memory"], container["name"]
    assert all("add" not in it["securityContext"]["capabilities"] for it in pod["containers"])


def is_the_container(pod):
    """Check the daemon's container against the options that container.sh gives to podman."""
    test = (TREE / "scripts/deploy/container.sh").read_text()
    daemon = pod["containers"][0]
    context = daemon["securityContext"]
    assert context["readOnlyRootFilesystem"] == (" --read-only " in test)
    assert [it.lower() for it in context["capabilities"]["drop"]] == re.findall(r"--cap-drop (\S+)", test)
    assert context["allowPrivilegeEscalation"] != ("no-new-privileges" in test)
    stop_s = re.search(r"--stop-timeout (\d+)", test).group(1)
    assert pod["terminationGracePeriodSeconds"] == int(stop_s)
    mounts = {(it["mountPath"], it.get("readOnly", False)) for it in daemon["volumeMounts"]}
    given = re.findall(r'-v "\$folder/\$name/\w+:([^:"]+)(:ro)?"', test)
    assert mounts == {(path, bool(read_only)) for path, read_only in given}, (mounts, given)
    assert not any("env" in it for it in pod["containers"])


def refers_to_what_there_is(objects, pod):
    by_kind = {it["kind"]: it for it in objects}
    assert {it["metadata"]["namespace"] for it in objects} == {"shoal"}
    volumes = {it["name"]: it for it in pod["volumes"]}
    assert volumes["configuration"]["configMap"]["name"] == by_kind["ConfigMap"]["metadata"]["name"]
    mounted = {it["name"] for holder in pod["initContainers"] + pod["containers"] for it in holder["volumeMounts"]}
    assert mounted == set(volumes), mounted ^ set(volumes)
    spec = by_kind["DaemonSet"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == by_kind["Service"]["spec"]["selector"] == labels
    assert by_kind["Service"]["spec"]["clusterIP"] == "None"
    named = {it["name"]: it["containerPort"] for it in pod["containers"][0]["ports"]}
    configuration = json.loads(by_kind["ConfigMap"]["data"]["shoald.json"])
    assert named == {"control": configuration["listen"]["port"], "metrics": configuration["metrics"]["port"]}
    assert by_kind["Service"]["spec"]["ports"][0]["targetPort"] in named


def makes_a_configuration(objects, pod, build):
    """Run the container's shell on the two files, and check what it makes with the tree's own daemon."""
    container = next(it for it in pod["initContainers"] if it["name"] == "configuration")
    with tempfile.TemporaryDirectory() as folder:
        given = pathlib.Path(folder)
        for name in ("etc", "given/configuration", "given/secret"):
            (given / name).mkdir(parents=True)
        config_map = next(it for it in objects if it["kind"] == "ConfigMap")
        (given / "given/configuration/shoald.json").write_text(config_map["data"]["shoald.json"])
        (given / "given/secret/secret").write_text("0" * 64 + "\n")
        script = container["command"][2].replace("/given/", f"{given}/given/").replace("/etc/shoal", f"{given}/etc")
        environment = dict(os.environ, NODE="node-b", PATH=f"{build}/bin:{os.environ['PATH']}")
        subprocess.run([*container["command"][:2], script], env=environment, check=True)
        made = json.loads((given / "etc/shoald.json").read_text())
        assert made["node"] == "node-b"
        assert (given / "etc/secret").stat().st_mode & 0o777 == 0o600


def meets_the_daemon(training, pod):
    """The ranks find the socket, and may use it; two pods do not share a node."""
    spec = training["spec"]["replicatedJobs"][0]["template"]["spec"]
    ranks = spec["template"]["spec"]
    assert ranks["securityContext"]["supplementalGroups"] == [pod["securityContext"]["runAsGroup"]]
    assert ranks["nodeSelector"] == pod["nodeSelector"]
    paths = [[it["hostPath"]["path"] for it in each["volumes"] if "hostPath" in it] for each in (ranks, pod)]
    assert paths[0] == paths[1] == ["/run/shoal"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    master = f"{training['metadata']['name']}-{training['spec']['replicatedJobs'][0]['name']}-0-0"
    assert f"--master_addr={master}.{training['metadata']['name']}" in ranks["containers"][0]["command"]
    assert f"--nnodes={spec['completions']}" in ranks["containers"][0]["command"]


def fits_kubernetes(objects, training):
    """Check like the API server with strict validation: each field of each object, and of the set's Job."""
    job = training["spec"]["replicatedJobs"][0]["template"]
    for kind, value in [*((it["kind"], it) for it in objects), ("JobTemplate", job)]:
        fields = kubernetes_schema.fits(value, kubernetes_schema.definition(kind))
        print(f"     {kind}: {fields} fields, {kubernetes_schema.FILE.name}")


def fits_jobset(training):
    versions = yaml.safe_load(pathlib.Path(os.environ["SHOAL_JOBSET_CRD"]).read_text())["spec"]["versions"]
    whole = next(it for it in versions if it["name"] == training["apiVersion"].split("/")[1])
    schema = kubernetes_schema.closed(whole["schema"]["openAPIV3Schema"])
    metadata = kubernetes_schema.definition("ConfigMap")
    schema["definitions"] = metadata["definitions"]
    schema["properties"]["metadata"] = {"$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
    print(f"     JobSet: {kubernetes_schema.fits(training, schema)} fields")


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    failed = 0

    def check(what, function, *arguments):
        nonlocal failed
        try:
            function(*arguments)
            print(f"PASS {what}", flush=True)
        except Exception as problem:  # whatever is wrong with a file is a line, not the end
            failed += 1
            print(f"FAIL {what}: {type(problem).__name__}: {problem}", flush=True)

    objects, (training,) = load("shoald.yaml"), load("training.yaml")
    pod = next(it for it in objects if it["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    check("the daemon's pod is the image that the container's test runs", is_the_image, pod)
    check("its fields are the options of the container's test", is_the_container, pod)
    check("no container may write to its root or has a capability too many", is_confined, pod)
    check("all that is referred to is there", refers_to_what_there_is, objects, pod)
    check("the configuration that is made is right, and the secret its owner's", makes_a_configuration,
          objects, pod, build)
    check("the ranks of the set meet the daemon of their node", meets_the_daemon, training, pod)
    check("each field fits Kubernetes' published schema, which takes no other", fits_kubernetes, objects, training)
    if "SHOAL_JOBSET_CRD" in os.environ:
        check("the set fits JobSet's published schema, which takes no other", fits_jobset, training)
    else:
        print("     no SHOAL_JOBSET_CRD: what the set has beside its Job is held against no schema")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
