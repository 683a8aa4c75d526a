"""Promises of the project about itself: what exists is documented, pinned and exported."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import pkgutil
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from agents import checks, exceptions

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
APPS = ("agents", "conversations", "scheduler")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def modules() -> list[str]:
    """Every module of our apps, but for migrations and commands."""
    names = []
    for app in APPS:
        package = importlib.import_module(app)
        names += [info.name for info in pkgutil.walk_packages(package.__path__, f"{app}.")]
    return [*APPS, *(name for name in names if ".migrations" not in name and ".management" not in name)]


def errors() -> list[type[Exception]]:
    """Every class of the apps' ``exceptions`` modules."""
    found = []
    for name in modules():
        if name.endswith(".exceptions"):
            for cls in vars(importlib.import_module(name)).values():
                if inspect.isclass(cls) and issubclass(cls, Exception) and cls.__module__ == name:
                    found.append(cls)
    return found


def test_every_variable_that_the_settings_read_is_documented() -> None:
    source = (ROOT / "agentsite" / "settings.py").read_text(encoding="utf-8")
    read = set(re.findall(r"\benv\.\w+\(\s*\"([A-Z_]+)\"", source))
    assert len(read) > 20
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", page("settings.md"), flags=re.M))
    assert read <= documented, read - documented


def test_every_key_of_agents_is_documented() -> None:
    text = page("settings.md")
    missing = [name for name in checks.known_settings() if f"`{name}`" not in text]
    assert missing == []


def test_every_check_is_documented() -> None:
    text = page("settings.md")
    ids = set()
    for app in APPS:
        path = ROOT / app / "checks.py"
        if path.exists():
            ids |= set(re.findall(rf"\"({app}\.[EWI]\d{{3}})\"", path.read_text(encoding="utf-8")))
    assert {i for i in ids if f"`{i}`" not in text} == set()


def test_every_limit_is_documented_with_its_error() -> None:
    names = {name for name in checks.known_settings() if name.startswith("MAX_")}
    for app in APPS:
        for path in (ROOT / app).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            names |= set(re.findall(r"limit=\"([A-Z_]+)\"", source))
            if path.name == "conf.py":
                names |= set(re.findall(r"^(\w+_MAX_LENGTH|MAX_\w+)\b.*=", source, flags=re.M))
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (.+) \|$", page("limits.md"), flags=re.M))
    assert names - rows.keys() == set()
    known = {error.__name__ for error in errors()}
    for name, error in rows.items():
        assert known & set(re.findall(r"`(\w+)`", error)), name


def test_every_error_is_documented_with_its_code() -> None:
    text = page("errors.md")
    for error in errors():
        code = getattr(error, "code", None)
        row = f"`{error.__name__}(" if code is None else f"| `{error.__name__}` | `{code}` |"
        assert row in text, error


def test_every_error_says_what_to_do_and_is_drawn_in_its_tree() -> None:
    for error in errors():
        assert error.__doc__
        assert error.__name__ in (inspect.getmodule(error).__doc__ or ""), error


def test_every_class_of_error_has_a_code_of_its_own() -> None:
    for error in errors():
        if issubclass(error, exceptions.AgentsError):
            assert "code" in vars(error), error


def test_what_a_module_exports_exists() -> None:
    for name in modules():
        module = importlib.import_module(name)
        for exported in getattr(module, "__all__", ()):
            assert getattr(module, exported, None) is not None, f"{name}.{exported}"


def test_the_front_door_exports_what_it_can_give_and_its_types_agree() -> None:
    import agents

    source = inspect.getsource(agents)
    block = source.split("if TYPE_CHECKING:", 1)[1].split("__all__", 1)[0]
    imported = set(re.findall(r"^\s+(\w+),$", block, flags=re.M))
    for line in re.findall(r"import ([\w, ]+)$", block, flags=re.M):
        imported |= {word.strip() for word in line.split(",") if word.strip()}
    assert imported == set(agents.__all__)
    assert list(agents.__all__) == sorted(agents.__all__)


def test_every_link_between_the_pages_leads_somewhere() -> None:
    for path in [*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_every_page_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in DOCS.glob("*.md") if f"docs/{path.name}" not in readme] == []


def test_every_package_that_the_project_needs_is_pinned_and_fits() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pinned = {canonicalize_name(name): version for name, version in pins.items()}

    groups = [project["project"]["dependencies"], project["dependency-groups"]["dev"]]
    wanted = [Requirement(text) for group in groups for text in group]
    seen: set[tuple[str, frozenset[str]]] = set()
    while wanted:
        requirement = wanted.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        assert name in pinned, f"{name} is missing in constraints.txt"
        assert requirement.specifier.contains(pinned[name], prereleases=True), requirement
        for text in importlib.metadata.requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras | {""}):
                wanted.append(needed)


def test_no_file_of_the_project_names_a_place_of_packages() -> None:
    for name in ("constraints.txt", "pyproject.toml"):
        assert "://" not in (ROOT / name).read_text(encoding="utf-8")
