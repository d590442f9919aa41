"""What scripts/jenkins_facts reads in sources: small ones here, which have every form once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts.jenkins_facts.__main__ import commit, files
from scripts.jenkins_facts.facts import Index, dsl_of, facts_of
from scripts.jenkins_facts.java import classes, element

CORE = """package hudson.model;
/** Not a class: class Other { @DataBoundSetter void setOther(String other) } */
public class Agent extends Node implements Serializable {
    private static final String TEXT = "class Inner { // no comment";
    @DataBoundConstructor
    public Agent(@NonNull String name, final List<NodeProperty<?>> properties) { this(name); }
    @DataBoundSetter public void setLabel(@CheckForNull String label) { if (label != null) { } }
    @DataBoundSetter
    private boolean fast;
    public String getColour() { return "red"; }
    public void setColour(String colour) { }
    public void setHidden(String hidden) { }
    @Extension @Symbol({"agent", "dumb"})
    public static class DescriptorImpl extends NodeDescriptor { }
}
public abstract class Node { @DataBoundSetter public void setMode(Mode mode) { } }
"""
STEP = """public final class SleepStep extends Step {
    @DataBoundConstructor public SleepStep(int time) { }
    @DataBoundSetter public void setUnit(TimeUnit unit) { }
    public static final class DescriptorImpl extends StepDescriptor {
        @Override public String getFunctionName() { return "sleep"; }
        @Override public boolean takesImplicitBlockArgument() { return true; }
    }
}
class RunWrapper {
    @Whitelisted
    public @CheckForNull String getResult() throws AbortException { return ""; }
    public String getRaw() { return ""; }
}
"""
ROOT_CONFIGURATOR = """
class JenkinsConfigurator
    extends BaseConfigurator<Jenkins> implements RootElementConfigurator<Jenkins> {
    Set<Attribute> describe() { add(new Attribute<Jenkins, Proxy>("proxy", Proxy.class)); }
    public String getName() { return "jenkins"; }
}
class Jenkins { public int getPort() { return 1; } public void setPort(int port) { } }
"""
DSL = """class WorkflowJob extends Job {
    void definition(@DslContext(DefinitionContext) Closure closure) { }
}
abstract class Job { void description(String text) { } }
@ContextType('hudson.model.JobProperty')
class DefinitionContext extends AbstractExtensibleContext { void script(String text = '') { } }
"""


def index(*sources: str) -> Index:
    made = Index()
    for source in sources:
        for each in classes(source):
            made.add(each, plugin="core")
    return made


def test_what_binds_data_is_found_with_its_types_and_nothing_in_comments_or_texts() -> None:
    found = facts_of(index(CORE, STEP))
    assert set(found["classes"]) == {"Agent"}
    assert found["classes"]["Agent"] == {
        "casc": {"colour": "String"},
        "kinds": ["Agent", "Node"],
        "needs": {"name": "String", "properties": "NodeProperty"},
        "plugin": "core",
        "symbols": ["agent", "dumb"],
        "takes": {"label": "String", "fast": "boolean", "mode": "Mode"},
    }


def test_steps_roots_and_what_a_build_says() -> None:
    found = facts_of(index(CORE, STEP, ROOT_CONFIGURATOR))
    step = {"needs": {"time": "int"}, "takes": {"unit": "TimeUnit"}, "block": True}
    assert found["steps"] == {"sleep": {**step, "plugin": "core"}}
    assert found["roots"]["jenkins"] == {"port": "int", "proxy": "Proxy"}
    assert found["builds"] == ["Result"]


def test_methods_of_jobs_with_their_contexts() -> None:
    assert dsl_of(index(DSL)) == {
        "WorkflowJob": {
            "methods": {"definition": "DefinitionContext", "description": ""},
            "extensible": False,
        },
        "DefinitionContext": {
            "methods": {"script": ""},
            "extensible": False,
            "kind": "JobProperty",
        },
    }


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("List<NodeProperty<?>>", "NodeProperty"),
        ("Collection<? extends Node>", "Node"),
        ("String[]", "String"),
        ("java.util.Map<String, Node>", "Map"),
        ("Domain.Specification", "Domain.Specification"),
    ],
)
def test_the_type_of_an_entry(kind: str, name: str) -> None:
    assert element(kind) == name


def test_the_tag_of_the_pinned_version_is_read_without_its_tests(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        subprocess.run(["git", "-C", tmp_path, *identity, *arguments], check=True)

    git("init", "--quiet")
    for version in ("1.0", "1.1"):
        for part in ("main", "test"):
            path = tmp_path / "src" / part / "java" / "A.java"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"// {part} {version}")
        git("add", ".")
        git("commit", "--quiet", "--message", version)
        git("tag", f"mailer-{version}")
    assert commit(tmp_path, "mailer", "1.0") == "mailer-1.0"
    assert commit(tmp_path, "mailer", "2.0") == commit(tmp_path, "mailer", None) == "HEAD"
    assert list(files(tmp_path, "mailer-1.0")) == ["// main 1.0"]
