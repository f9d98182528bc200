"""Manifests for Kubernetes: whole, of one mind with each other, the container and the settings."""

import json
import re
from collections import Counter

import pytest
import yaml

from kvd.cli.main import parser
from kvd.config import SOCKET_NAMES, serve_config
from kvd.host.footprint import daemon_bytes
from tests.unit.containerfile import parse
from tests.unit.test_cli_doctor import ROOT

DIRECTORY = ROOT / "deploy" / "kubernetes"
API = {
    "Namespace": "v1", "ConfigMap": "v1", "Pod": "v1", "DaemonSet": "apps/v1",
    "PriorityClass": "scheduling.k8s.io/v1", "PodMonitor": "monitoring.coreos.com/v1",
    "Kustomization": "kustomize.config.k8s.io/v1beta1",
}  # fmt: skip
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


class Strict(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML would take the last in silence."""

    def construct_mapping(self, node, deep=False):
        keys = Counter(self.construct_object(key) for key, _ in node.value)
        assert max(keys.values(), default=1) == 1, (node.start_mark, keys.most_common(1))
        return super().construct_mapping(node, deep)


def load(name):
    [document] = yaml.load_all((DIRECTORY / name).read_text(), Strict)
    return document


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """The settings of the ConfigMap, as the daemon would take them on a node that is large."""
    path = tmp_path_factory.mktemp("config") / "kvd.toml"
    path.write_text(load("configmap.yaml")["data"]["kvd.toml"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvd.config.memory_bytes", lambda: 1 << 40)
        return serve_config({"config": str(path)}, {})


@pytest.fixture(scope="module")
def pod():
    return load("daemonset.yaml")["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def daemon(pod):
    [container] = pod["containers"]
    return container


@pytest.fixture(scope="module")
def engine():
    return load("engine.yaml")["spec"]


def size(text):
    match = re.fullmatch(r"(\d+)(Ki|Mi|Gi|Ti)", text)
    return int(match[1]) * UNITS[match[2]]


def mounts(spec, container):
    """Return host path or source by mount path, and the mount; each volume has its mount."""
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    found = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert len(volumes) == len(spec["volumes"])
    return found


# ---- each by itself ----


@pytest.mark.parametrize("path", sorted(DIRECTORY.glob("*.yaml")), ids=lambda path: path.stem)
def test_manifests_are_whole(path):
    document = load(path.name)
    assert document["apiVersion"] == API[document["kind"]]
    if document["kind"] != "Kustomization":
        assert NAME.fullmatch(document["metadata"]["name"])
    cluster = document["kind"] in ("Namespace", "PriorityClass", "Kustomization")
    if not cluster and document["kind"] != "Pod":
        assert document["metadata"]["namespace"] == load("namespace.yaml")["metadata"]["name"]


def test_what_is_applied_together_is_there():
    kustomization = load("kustomization.yaml")
    names = {path.name for path in DIRECTORY.glob("*.yaml")}
    left = {"kustomization.yaml", "engine.yaml", "podmonitor.yaml"}
    assert set(kustomization["resources"]) == names - left
    [image] = kustomization["images"]
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    assert (image["name"], image["newTag"]) == ("kvd", version)


def test_selectors_find_what_they_are_for(pod):
    spec = load("daemonset.yaml")["spec"]
    labels = spec["template"]["metadata"]["labels"]
    for selector in (spec["selector"], load("podmonitor.yaml")["spec"]["selector"]):
        assert selector["matchLabels"].items() <= labels.items()
    assert pod["priorityClassName"] == load("priorityclass.yaml")["metadata"]["name"]
    assert load("namespace.yaml")["metadata"]["labels"] == {
        "pod-security.kubernetes.io/enforce": "privileged"  # As host paths ask for it.
    }


# ---- words and images ----


def test_words_are_those_of_the_command_line(daemon):
    arguments = parser().parse_args(daemon["args"])
    assert arguments.verb == "serve" and "command" not in daemon
    file = arguments.config
    for name, alive in (("startup", False), ("liveness", True), ("readiness", False)):
        probe = daemon[f"{name}Probe"]
        program, *words = probe["exec"]["command"]
        asked = parser().parse_args(words)
        assert program == "kvd" and asked.verb == "health"
        assert (asked.config, asked.alive) == (file, alive)
        # A probe that is cut off says nothing of why.
        assert probe["timeoutSeconds"] > asked.seconds
    assert file.startswith("/etc/kvd/") and file.endswith("/kvd.toml")


def test_users_are_those_of_the_container_and_the_settings(pod, engine, config):
    final = parse(ROOT / "deploy" / "container" / "Containerfile")[-1]
    user, group = map(int, final.last("USER").split(":"))
    context = pod["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (user, group)
    assert engine["securityContext"]["runAsUser"] in config.allowed_uids
    assert user not in config.allowed_uids  # A client of that user could write others' slabs.


def test_nobody_may_more_than_needed(pod, daemon, engine):
    for spec in (pod, engine):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostIPC", "hostPID", "hostNetwork"} & spec.keys()
    for container in (daemon, *engine["containers"], *pod["initContainers"]):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"]["drop"] == ["ALL"] and "privileged" not in context
    assert daemon["securityContext"]["readOnlyRootFilesystem"] is True
    assert "add" not in daemon["securityContext"]["capabilities"]
    [directories] = pod["initContainers"]
    assert set(directories["securityContext"]["capabilities"]["add"]) == {"CHOWN", "FOWNER"}
    assert pod["automountServiceAccountToken"] is False


# ---- sizes and times ----


def test_the_memory_limit_holds_dram_and_the_daemon(daemon, config):
    resources = daemon["resources"]
    limit = size(resources["limits"]["memory"])
    assert limit >= config.dram_bytes + daemon_bytes(config.dram_bytes)
    assert resources["requests"]["memory"] == resources["limits"]["memory"]


def test_the_pod_lives_longer_than_its_draining(pod, config):
    assert pod["terminationGracePeriodSeconds"] > config.limits.drain_ns / 1e9


def test_metrics_listen_where_they_are_asked_for(daemon, config):
    [endpoint] = load("podmonitor.yaml")["spec"]["podMetricsEndpoints"]
    [port] = [p for p in daemon["ports"] if p["name"] == endpoint["port"]]
    assert port["containerPort"] == config.metrics.port and config.metrics.host == "0.0.0.0"


# ---- paths ----


def test_paths_are_those_of_the_settings(pod, daemon, config):
    found = mounts(pod, daemon)
    own = str(config.directory)
    assert found[own]["hostPath"]["path"] == own
    for path in config.ssd.directories:
        assert "hostPath" in found[str(path)]
    assert found["/etc/kvd"]["configMap"]["name"] == load("configmap.yaml")["metadata"]["name"]
    [directories] = pod["initContainers"]
    made = {words[-1]: words for words in map(str.split, directories["args"][0].splitlines())}
    uid, gid = (str(pod["securityContext"][f"runAs{kind}"]) for kind in ("User", "Group"))
    assert set(made) == {own, *map(str, config.ssd.directories)} == set(mounts(pod, directories))
    for path, words in made.items():
        mode = "0755" if path == own else "0700"
        assert words[:-1] == ["install", "-d", "-o", uid, "-g", gid, "-m", mode]


def test_an_engine_sees_its_tenants_directory_only(engine, config):
    [container] = engine["containers"]
    [(place, volume)] = mounts(engine, container).items()
    host = volume["hostPath"]
    assert place == host["path"] and host["type"] == "Directory"
    tenants = {str(config.directory / name) for name in config.tenant_names}
    assert len(tenants) > 1 and place in tenants
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["KVD_TENANT_DIRECTORY"] == place
    for name in SOCKET_NAMES:
        assert len(f"{place}/{name}") <= 107


def test_a_key_that_stands_twice_is_seen():
    with pytest.raises(AssertionError):
        yaml.load("a: {b: 1, b: 2}", Strict)
    assert json.dumps(yaml.load("a: {b: 1}", Strict)) == '{"a": {"b": 1}}'
