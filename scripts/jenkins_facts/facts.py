"""From classes of Jenkins' sources to the facts that the tests of the configuration ask."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from scripts.jenkins_facts.java import Class, element

KINDS = (
    *(
        "AuthorizationStrategy",
        "BuildCondition",
        "BuildDiscarder",
        "ComputerLauncher",
        "Credentials",
    ),
    *(
        "CrumbIssuer",
        "DeclarativeOption",
        "ErrorCondition",
        "JobProperty",
        "MarkupFormatter",
        "Node",
    ),
    *(
        "NodeProperty",
        "ParameterDefinition",
        "PrivateKeySource",
        "RetentionStrategy",
        "ScriptSource",
    ),
    *("SecurityRealm", "SimpleBuildStep", "SimpleBuildWrapper", "SshHostKeyVerificationStrategy"),
    "Trigger",
)
"""The kinds of objects that the configuration, the jobs and the pipelines are made of."""

_ADDED = re.compile(
    r"new\s+\w*Attribute\s*(?:<[^(]*>)?\s*\(\s*\"(\w*)\"\s*,\s*([\w.]+)\.class", re.DOTALL
)
_FUNCTION = re.compile(r"getFunctionName\s*\(\s*\)\s*\{\s*return\s+\"(\w+)\"")
_BLOCK = re.compile(r"takesImplicitBlockArgument\s*\(\s*\)\s*\{\s*return\s+true")
_NAME = re.compile(r"getName\s*\(\s*\)\s*\{\s*return\s+\"(\w+)\"")
_CATEGORY = re.compile(r"GlobalConfigurationCategory\.(\w+)\.class")
_DSL = re.compile(
    r"^\s*(?:@\w+\s+)*(?:void|[A-Z]\w*)\s+(\w+)\s*\(([^)]*(?:\([^)]*\)[^)]*)*)\)\s*\{", re.MULTILINE
)
_CONTEXT = re.compile(r"@DslContext\(\s*(\w+)")
_WHITELISTED = re.compile(r"@Whitelisted\b[^;{]*?\bget([A-Z]\w*)\s*\(\s*\)")


class Index:
    """Classes by name, which has no package: of two in one plugin, the first is known."""

    def __init__(self) -> None:
        self.classes: dict[str, Class] = {}
        self.plugins: dict[str, str] = {}
        self._simple: dict[str, list[str]] = defaultdict(list)
        self._inside: dict[str, list[Class]] = defaultdict(list)

    def add(self, each: Class, plugin: str) -> None:
        if self.plugins.get(each.name, plugin) != plugin:
            each.name += f"@{plugin}"
        if each.name not in self.classes:
            self.classes[each.name] = each
            self.plugins[each.name] = plugin
            self._simple[each.simple].append(each.name)
            self._inside[each.outer].append(each)

    def find(self, name: str, around: str = "") -> Class | None:
        """The class that is called `name` inside of the class `around`, or else anywhere."""
        while around:
            if found := self.classes.get(f"{around}.{name}"):
                return found
            around = around.rpartition(".")[0]
        known = self.classes.get(name)
        others = self._simple.get(name.rpartition(".")[2], [])
        return known or (self.classes[others[0]] if len(others) == 1 else None)

    def ancestors(self, each: Class) -> list[Class]:
        """The class and what it extends, nearest first, as far as it is in the index."""
        found = {each.name: each}
        left = [each]
        while left:
            one = left.pop(0)
            for parent in one.parents:
                above = self.find(parent, one.outer)
                if above is not None and above.name not in found:
                    found[above.name] = above
                    left.append(above)
        return list(found.values())

    def inside(self, each: Class) -> list[Class]:
        """The classes directly inside of a class."""
        return self._inside[each.name]

    def kinds(self, each: Class) -> set[str]:
        known = self.ancestors(each)
        return {a.simple for a in known} | {p.rpartition(".")[2] for a in known for p in a.parents}


def facts_of(index: Index) -> Mapping[str, Any]:
    """`classes`, `steps`, `roots` of the configuration, and `builds`, the properties of a build."""
    roots, extra = _roots(index)
    chosen = {c.name for c in index.classes.values() if _is_asked(index, c) or c.simple in extra}
    steps = dict(_steps(index))
    given = [*roots.values(), *extra.values()]
    given += [step[part] for step in steps.values() for part in ("needs", "takes")]
    placed = {"": {kind: kind for attributes in given for kind in attributes.values()}}
    made: dict[str, Any] = {}
    while chosen or placed:
        for around, kinds in placed.items():
            types = (index.find(kind, around) for kind in kinds.values())
            chosen |= {c.name for c in types if c is not None and c.needs is not None}
        placed = {}
        for name in sorted(chosen - set(made)):
            made[name] = _described(index, index.classes[name], extra)
            placed[name] = {k: k for part in ("needs", "takes") for k in made[name][part].values()}
        chosen = set()
    return {
        "classes": made,
        "steps": steps,
        "roots": roots,
        "builds": sorted(set(_WHITELISTED.findall(index.classes["RunWrapper"].body))),
    }


def _is_asked(index: Index, each: Class) -> bool:
    """Whether it is of one of the kinds and can be named: it binds data or has a symbol."""
    named = each.needs is not None or bool(_symbols(index, each))
    return named and bool(index.kinds(each) & set(KINDS))


def _symbols(index: Index, each: Class) -> list[str]:
    """Those of the class and of the descriptor inside it."""
    return [*each.symbols, *(s for c in index.inside(each) for s in c.symbols)]


def _described(index: Index, each: Class, extra: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    takes: dict[str, str] = {}
    sets: dict[str, str] = {}
    gets: set[str] = set()
    for ancestor in index.ancestors(each):
        takes = {**ancestor.takes, **takes}
        sets = {**ancestor.sets, **sets}
        gets |= set(ancestor.gets)
    needs = each.needs or {}
    # The configuration as code also takes what has a public setter and a getter.
    casc = {n: k for n, k in sets.items() if n in gets and n not in takes and n not in needs}
    casc |= extra.get(each.simple, {})
    found: dict[str, Any] = {
        "kinds": sorted(index.kinds(each) & {*KINDS, each.simple}),
        "needs": dict(needs),
        "plugin": index.plugins[each.name],
        "symbols": _symbols(index, each),
        "takes": takes,
    }
    return found | ({"casc": casc} if casc else {})


def _roots(index: Index) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """The attributes of root elements by place, and those that configurators add to a class."""
    roots: dict[str, dict[str, str]] = {}
    extra: dict[str, dict[str, str]] = defaultdict(dict)
    for each in list(index.classes.values()):
        kinds = index.kinds(each)
        if {"BaseConfigurator", "Configurator", "RootElementConfigurator"} & kinds:
            added = {n: k for a in index.ancestors(each) for n, k in _ADDED.findall(a.body)}
            target = re.search(r"<\s*(\w+)", each.header)
            if target:
                extra[target[1]] |= {n: element(k) for n, k in added.items()}
            name = _NAME.search(each.body)
            if "RootElementConfigurator" in kinds and name:
                own = index.find(target[1]) if target else None
                roots[name[1]] = _settable(index, own) | added
        elif kinds & {"GlobalConfiguration", "BuildStepDescriptor"} and _settable(index, each):
            category = _CATEGORY.search(each.body)
            place = (category[1] if category else "Unclassified").lower()
            said = each.simple if "GlobalConfiguration" in kinds else each.outer
            for symbol in each.symbols or (said[:1].lower() + said[1:],):
                roots[f"{place}.{symbol}"] = _settable(index, each)
    return roots, dict(extra)


def _settable(index: Index, each: Class | None) -> dict[str, str]:
    """What the configuration as code sets: what has a public setter and a getter, and lists."""
    if each is None:
        return {}
    lineage = index.ancestors(each)
    gets = {name: kind for a in lineage for name, kind in a.gets.items()}
    found = {n: k for a in lineage for n, k in a.sets.items() if n in gets}
    lists = ("DescribableList", "PersistedList")
    found |= {n: element(k) for n, k in gets.items() if any(word in k for word in lists)}
    return found


def _steps(index: Index) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in index.classes.values():
        function = _FUNCTION.search(each.body)
        step = index.classes.get(each.outer)
        if function and step is not None:
            found = _described(index, step, {})
            block = any(_BLOCK.search(a.body) for a in index.ancestors(each))
            yield (
                function[1],
                {k: found[k] for k in ("needs", "plugin", "takes")} | {"block": block},
            )


def dsl_of(index: Index) -> dict[str, Any]:
    """The methods of the contexts that a pipeline job is made of, with the context of a closure."""
    found: dict[str, Any] = {}
    left = ["WorkflowJob"]
    while left:
        each = index.find(left.pop())
        if each is None or each.simple in found:
            continue
        lineage = index.ancestors(each)
        methods: dict[str, str] = {}
        for ancestor in reversed(lineage):
            for name, parameters in _DSL.findall(ancestor.body):
                context = _CONTEXT.search(parameters)
                methods[name] = context[1] if context else methods.get(name, "")
        kind = re.search(r"@ContextType\('([\w.]+)'\)", each.annotations)
        extensible = any(a.simple == "AbstractExtensibleContext" for a in lineage)
        found[each.simple] = {"methods": dict(sorted(methods.items())), "extensible": extensible}
        if kind:
            found[each.simple]["kind"] = kind[1].rpartition(".")[2]
        left += [context for context in methods.values() if context]
    return found
