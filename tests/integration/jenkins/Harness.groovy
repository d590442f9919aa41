// Runs a declarative Jenkinsfile without Jenkins: every directive and step is checked against what
// is listed here, stubbed, and written to a trace. java … groovy.ui.GroovyMain Harness.groovy FILE FACTS
// takes a JSON object of scenarios by name and prints {name: {"result", "error", "trace"}}.
//
// A scenario: `jenkinsfile` (its text), `defaults` (the parameters of the job), `params` (over them), `labels`
// (agents there are), `offline` (labels whose agents are not connected), `restarted` (the controller was
// restarted in mid-build), `earlier` (results of the builds before, newest first), and `rules`, each {"match":
// part of a script, "times": n, and one of "status": exit status (negative: Jenkins lost track of it),
// "stdout": what it prints, "lost": true (the agent goes away), "abort": true (a person aborts)}. For the
// match `checkout` or `mail`, that step fails.
//
// FACTS is stack/jenkins/facts.json: which steps and options there are, what they take and need, and what a
// build says of itself. What a block may hold is from the Pipeline Syntax reference of jenkins.io. How
// catchError, retry and timeout treat interruptions is from the source of workflow-basic-steps: only a
// person's abort passes catchInterruptions: false, and where a timeout is caught the build becomes ABORTED
// all the same. That the directive `agent` checks out again after a restart was seen in Jenkins 2.568.2.
import groovy.json.JsonOutput
import groovy.json.JsonSlurper
import org.codehaus.groovy.control.CompilationFailedException
import org.codehaus.groovy.control.CompilerConfiguration
import org.codehaus.groovy.runtime.InvokerHelper

class StepFailed extends RuntimeException { StepFailed(String why) { super(why) } }
class AgentLost extends RuntimeException { AgentLost(String why) { super(why) } }
class TimedOut extends RuntimeException { TimedOut(String why) { super(why) } }
class Aborted extends RuntimeException { Aborted(String why) { super(why) } }
// The Jenkinsfile itself is wrong: nothing it does may catch this.
class Wrong extends Error { Wrong(String why) { super(why) } }

class Strict extends LinkedHashMap {
    String what
    Object get(Object key) {
        if (!containsKey(key)) { throw new Wrong("no ${what} ${key}") }
        return super.get(key)
    }
}

abstract class Jenkinsfile extends Script {
    // directive -> parameters it takes, or BLOCK for one with a closure, ONE for one plain value
    static final Map BLOCKS = [
        pipeline: [agent: 1, options: 1, environment: 1, stages: 1, post: 1],
        stages: [stage: 1],
        stage: [agent: 1, options: 1, when: 1, steps: 1, post: 1, stages: 1, environment: 1],
        agent: [label: 1],
        when: [beforeAgent: 1, expression: 1],
        post: [always: 1, changed: 1, fixed: 1, regression: 1, aborted: 1, failure: 1, success: 1,
               unstable: 1, unsuccessful: 1, cleanup: 1],
    ]
    // step -> [parameters it takes, those it needs, the one that may stand alone]
    static Map steps = [:]
    static Map facts
    // These may be left out although the constructor takes them.
    static final Map OPTIONAL = [node: ['label'], publishHTML: []]
    static final List CALLED = ['sh', 'echo', 'error', 'unstable', 'sleep', 'stash', 'unstash', 'checkout', 'node',
                                'nodesByLabel', 'timeout', 'retry', 'catchError', 'withEnv', 'junit', 'publishHTML',
                                'parallel', 'script', 'mail', 'readJSON']
    static final Map KINDS = [archiveArtifacts: 'SimpleBuildStep', agent: 'ErrorCondition', nonresumable: 'ErrorCondition']

    // What the sources of Jenkins say that a step takes; one of another kind is called by its symbol.
    static void know(Map found) {
        facts = found
        CALLED.each { name ->
            if (!found.steps[name]) { throw new Wrong("Jenkins has no step ${name}") }
            steps[name] = shapeOf(name, found.steps[name])
        }
        KINDS.each { name, kind ->
            def made = found.classes.values().find { kind in it.kinds && name in it.symbols }
            if (!made) { throw new Wrong("Jenkins has no ${kind} ${name}") }
            steps[name] = shapeOf(name, made)
        }
        steps.parallel = [null, [], null]
    }

    static List shapeOf(String name, Map made) {
        List needs = made.needs.keySet() as List
        String alone = needs.size() == 1 ? needs[0] : null
        return [needs + (made.takes.keySet() as List), needs - (OPTIONAL[name] ?: []), alone]
    }

    static boolean isOption(String name) {
        return facts.steps[name]?.block || facts.classes.values().any { 'DeclarativeOption' in it.kinds && name in it.symbols }
    }

    static final List WITH_BODY = ['node', 'timeout', 'retry', 'catchError', 'withEnv', 'script']
    static final List IN_WORKSPACE = ['sh', 'stash', 'unstash', 'checkout', 'archiveArtifacts', 'junit', 'publishHTML']
    static final List UNITS = ['SECONDS', 'MINUTES', 'HOURS', 'DAYS']
    static final List RESULTS = ['SUCCESS', 'UNSTABLE', 'FAILURE', 'NOT_BUILT', 'ABORTED']

    static Map scenario
    static List trace = []
    static List mode = []
    static List nodes = []
    static int timeouts = 0
    static Map agentGone = [:]
    static Set stashes = [] as Set
    static String result = 'SUCCESS'
    static Map collected

    def say(Map event) { trace << event }

    // What Jenkins would refuse before it runs anything passes every try.
    static void check(Throwable e) {
        if (e instanceof Error || e instanceof MissingPropertyException || e instanceof MissingMethodException) { throw e }
    }

    static void worse(String to) { if (RESULTS.indexOf(to) > RESULTS.indexOf(result)) { result = to } }

    def methodMissing(String name, Object given) {
        List args = given as List
        String block = mode ? mode.last() : 'top'
        if (block == 'top') {
            if (name != 'pipeline') { throw new Wrong("unknown at the top of a Jenkinsfile: ${name}") }
            return pipelineOf(args[0] as Closure)
        }
        return block == 'steps' ? step(name, args) : directive(block, name, args)
    }

    Map into(String block, Map holder, Closure body) {
        Map outer = collected
        collected = holder
        mode << block
        body.resolveStrategy = Closure.OWNER_FIRST
        try { body() } finally { mode.removeLast(); collected = outer }
        return holder
    }

    def directive(String block, String name, List args) {
        boolean known = block == 'options' ? isOption(name) : BLOCKS[block].containsKey(name)
        if (!known) { throw new Wrong("unknown directive in ${block}: ${name}") }
        Closure body = args && args.last() instanceof Closure ? args.last() as Closure : null
        boolean repeats = name == 'stage'
        if (!repeats && collected.containsKey(name)) { throw new Wrong("${name} stands twice in ${block}") }
        switch (block) {
            case 'options':
                Map given = args && args[0] instanceof Map ? args[0] as Map : [:]
                unknownIn(name, given.keySet(), steps[name] ? steps[name][0] as List : [])
                if (name == 'timeout') { units(given) }
                collected[name] = given ?: true
                return name
            case 'post':
                collected[name] = body
                return null
            case 'agent':
                collected[name] = args[0]
                return null
            case 'when':
                collected[name] = body ?: args[0]
                return null
        }
        switch (name) {
            case 'agent':
                collected.agent = body ? into('agent', [:], body) : [none: args[0]]
                break
            case 'stage':
                Map made = into('stage', [name: args[0]], body)
                if (!made.steps && !made.stages) { throw new Wrong("stage ${made.name} has no steps") }
                if (collected.list.any { it.name == made.name }) { throw new Wrong("two stages are called ${made.name}") }
                collected.list << made
                break
            case 'stages':
                collected.stages = into('stages', [list: []], body).list
                break
            case 'steps':
                collected.steps = body
                break
            case 'options':
                collected.options = into('options', [:], body)
                break
            default:
                collected[name] = into(name, [:], body)
        }
        return null
    }

    void pipelineOf(Closure body) {
        Map made = into('pipeline', [:], body)
        for (needed in ['agent', 'stages']) { if (!made[needed]) { throw new Wrong("pipeline has no ${needed}") } }
        Strict params = new Strict(what: 'parameter')
        params.putAll(scenario.defaults)
        scenario.params.each { key, value ->
            if (!params.containsKey(key)) { throw new Wrong("the scenario sets ${key}, which is no parameter") }
            params[key] = value
        }
        binding.setVariable('params', params)
        say(event: 'pipeline', options: made.options?.keySet() as List, post: made.post?.keySet() as List)
        Throwable first = null
        for (stage in made.stages) {
            if (first) { say(event: 'skipped', stage: stage.name); continue }
            try { stageOf(stage) } catch (Throwable e) {
                check(e)
                first = e
                worse(e instanceof Aborted || e instanceof TimedOut ? 'ABORTED' : 'FAILURE')
                say(event: 'failed', stage: stage.name, why: e.message)
            }
        }
        postOf('pipeline', made.post ?: [:])
    }

    void stageOf(Map stage) {
        if (stage.when?.expression && !carryOut(stage.when.expression)) {
            say(event: 'not asked for', stage: stage.name)
            return
        }
        say(event: 'stage', name: stage.name, label: stage.agent?.label, timeout: stage.options?.timeout)
        Closure work = {
            try {
                try {
                    if (stage.steps) { carryOut(stage.steps as Closure) }
                    stage.stages?.each { stageOf(it) }
                } catch (Throwable e) {
                    check(e)
                    worse(e instanceof Aborted || e instanceof TimedOut ? 'ABORTED' : 'FAILURE')
                    throw e
                }
            } finally { postOf(stage.name, stage.post ?: [:]) }
        }
        if (stage.options?.timeout) { timeouts++ }
        try {
            if (stage.agent?.label) {
                onNode(stage.agent.label) {
                    if (scenario.restarted) { say(event: 'checkout', label: stage.agent.label) }
                    work()
                }
            } else { work() }
        } finally { if (stage.options?.timeout) { timeouts-- } }
    }

    void postOf(String where, Map post) {
        for (condition in ['always', 'changed', 'fixed', 'regression', 'aborted', 'failure', 'success',
                           'unstable', 'unsuccessful', 'cleanup']) {
            boolean applies = [always: true, cleanup: true, aborted: result == 'ABORTED', failure: result == 'FAILURE',
                               success: result == 'SUCCESS', unstable: result == 'UNSTABLE',
                               unsuccessful: result != 'SUCCESS'][condition] ?: false
            if (post[condition] && applies) {
                say(event: 'post', of: where, condition: condition)
                try { carryOut(post[condition] as Closure) } catch (Throwable e) {
                    check(e)
                    worse('FAILURE')
                    say(event: 'failed', stage: "post ${condition}".toString(), why: e.message)
                }
            }
        }
    }

    def carryOut(Closure body) {
        mode << 'steps'
        try { return body() } finally { mode.removeLast() }
    }

    def step(String name, List args) {
        List shape = steps[name]
        if (shape == null) { throw new Wrong("unknown step: ${name}") }
        Closure body = args && args.last() instanceof Closure ? args.last() as Closure : null
        List rest = body ? args.init() : args
        Map given = [:]
        if (rest.size() == 1 && rest[0] instanceof Map && name != 'publishHTML') { given = rest[0] as Map }
        else if (rest.size() == 1 && name == 'publishHTML') { given = rest[0] as Map }
        else if (rest.size() == 1 && shape[2]) { given = [(shape[2]): rest[0]] }
        else if (rest) { throw new Wrong("${name}: which parameters are these? ${rest}") }
        if (shape[0] != null) { unknownIn(name, given.keySet(), shape[0] as List) }
        for (needed in shape[1]) { if (!given.containsKey(needed)) { throw new Wrong("${name} needs ${needed}") } }
        if (name in WITH_BODY && body == null) { throw new Wrong("${name} needs a block") }
        if (name in IN_WORKSPACE) {
            if (!nodes) { throw new Wrong("${name} stands outside of a node") }
            if (agentGone[nodes.last().id]) { throw new AgentLost("the agent of ${name} is gone") }
        }
        return this."do_${name}"(given, body)
    }

    static void unknownIn(String name, given, List takes) {
        def unknown = (given as List) - takes
        if (unknown) { throw new Wrong("${name} takes no ${unknown.join(', ')}") }
    }

    static void units(Map given) {
        if (given.unit && !(given.unit in UNITS)) { throw new Wrong("no unit of time: ${given.unit}") }
        if (!(given.time instanceof Integer)) { throw new Wrong("no time: ${given.time}") }
    }

    def onNode(String label, Closure body) {
        if (!(label in scenario.labels)) { throw new Wrong("no agent has the label ${label}") }
        if (label in scenario.offline) {
            if (!timeouts) { throw new Wrong("waits for ever for an agent with the label ${label}") }
            throw new TimedOut("no agent ${label} in time")
        }
        Map here = [label: label, id: trace.size()]
        say(event: 'node', label: label)
        nodes << here
        try { return body() } finally { nodes.removeLast() }
    }

    def do_node(Map given, Closure body) { onNode(given.label as String, body) }

    def do_sh(Map given, Closure body) {
        String script = given.script
        say(event: 'sh', script: script, label: nodes.last().label)
        for (rule in scenario.rules) {
            if (!script.contains(rule.match) || rule.times == 0) { continue }
            if (rule.times) { rule.times -= 1 }
            if (rule.lost) { agentGone[nodes.last().id] = true; throw new AgentLost("lost during ${script}") }
            if (rule.abort) { throw new Aborted("aborted during ${script}") }
            if (given.returnStdout) { return rule.stdout }
            if (given.returnStatus) { return rule.status }
            if (rule.status) { throw new StepFailed("script returned exit code ${rule.status}: ${script}") }
        }
        return given.returnStdout ? scenario.stdout : given.returnStatus ? 0 : null
    }

    def do_checkout(Map given, Closure body) {
        say(event: 'checkout', label: nodes.last().label)
        for (rule in scenario.rules) { if (rule.match == 'checkout') { throw new StepFailed('cannot clone') } }
        return [GIT_COMMIT: 'c0ffee']
    }

    def do_stash(Map given, Closure body) {
        if (!given.includes) { throw new Wrong("stash ${given.name} would take the whole workspace") }
        stashes << (given.name as String)
        say(event: 'stash', name: given.name as String, includes: given.includes as String)
    }

    def do_unstash(Map given, Closure body) {
        if (!(given.name as String in stashes)) { throw new StepFailed("nothing is stashed as ${given.name}") }
        say(event: 'unstash', name: given.name as String, label: nodes.last().label)
    }

    def do_mail(Map given, Closure body) {
        for (rule in scenario.rules) { if (rule.match == 'mail') { throw new StepFailed('cannot connect to host') } }
        say(event: 'mail', to: given.to as String, subject: given.subject as String, body: given.body as String)
    }

    def do_timeout(Map given, Closure body) {
        units(given)
        timeouts++
        try { return body() } finally { timeouts-- }
    }

    def do_retry(Map given, Closure body) {
        List conditions = given.conditions ?: ['any']
        for (int left = given.count as int; ; left--) {
            try { return body() } catch (Throwable e) {
                check(e)
                if (e instanceof Aborted) { throw e }
                boolean again = 'any' in conditions || (e instanceof AgentLost && 'agent' in conditions)
                if (left <= 1 || !again) { throw e }
                say(event: 'retry', why: e.message)
            }
        }
    }

    def do_catchError(Map given, Closure body) {
        for (key in ['buildResult', 'stageResult']) {
            if (given[key] && !(given[key] in RESULTS)) { throw new Wrong("catchError: no result ${given[key]}") }
        }
        try { body() } catch (Throwable e) {
            check(e)
            if (e instanceof Aborted && given.catchInterruptions == false) { throw e }
            String to = e instanceof Aborted || e instanceof TimedOut ? 'ABORTED' : (given.buildResult ?: 'FAILURE')
            worse(to)
            say(event: 'caught', message: given.message as String, why: e.message, result: to)
        }
        return null
    }

    def do_parallel(Map given, Closure body) {
        Throwable first = null
        given.each { name, branch ->
            say(event: 'branch', name: name as String)
            try { branch() } catch (Throwable e) { check(e); first = first ?: e }
        }
        if (first) { throw first }
    }

    def do_withEnv(Map given, Closure body) {
        for (pair in given.overrides) { if (!(pair as String).contains('=')) { throw new Wrong("withEnv: ${pair}") } }
        say(event: 'withEnv', variables: given.overrides.collect { it as String })
        return body()
    }

    def do_publishHTML(Map given, Closure body) {
        List shape = shapeOf('publishHTML', facts.classes.HtmlPublisherTarget)
        unknownIn('publishHTML', given.target.keySet(), shape[0] as List)
        for (needed in shape[1]) {
            if (!given.target.containsKey(needed)) { throw new Wrong("publishHTML needs ${needed}") }
        }
        say([event: 'publishHTML'] + given.target)
    }

    def do_nodesByLabel(Map given, Closure body) {
        if (!(given.label in scenario.labels)) { throw new Wrong("no agent has the label ${given.label}") }
        return given.label in scenario.offline ? [] : [given.label]
    }

    def do_unstable(Map given, Closure body) { worse('UNSTABLE'); say(event: 'unstable', message: given.message) }
    def do_error(Map given, Closure body) { throw new StepFailed(given.message as String) }
    def do_sleep(Map given, Closure body) { units(given) }
    def do_echo(Map given, Closure body) { null }
    def do_script(Map given, Closure body) { body() }
    def do_readJSON(Map given, Closure body) { new JsonSlurper().parseText(given.text as String) }
    def do_agent(Map given, Closure body) { 'agent' }
    def do_nonresumable(Map given, Closure body) { 'nonresumable' }
    def do_archiveArtifacts(Map given, Closure body) { say([event: 'archiveArtifacts'] + given) }
    def do_junit(Map given, Closure body) { say([event: 'junit'] + given) }
}

// A build, and those before it, by what the sources say that a pipeline may ask of it.
class Build {
    List results
    Object getProperty(String name) {
        if (!(name.capitalize() in Jenkinsfile.facts.builds)) { throw new Wrong("a build has no ${name}") }
        switch (name) {
            case 'result': return results[0]
            case 'currentResult': return Jenkinsfile.result
            case 'previousCompletedBuild':
                List earlier = results.drop(1)
                return earlier ? new Build(results: earlier) : null
        }
        throw new Wrong("the harness has no ${name} of a build")
    }
    void setProperty(String name, Object value) {
        if (name == 'results') { results = value as List; return }
        if (name != 'description') { throw new Wrong("${name} of a build cannot be set") }
        Jenkinsfile.trace << [event: 'description', text: value as String]
    }
}

def settings = new CompilerConfiguration(scriptBaseClass: Jenkinsfile.name)
Jenkinsfile.know(new JsonSlurper().parse(new File(args[1])) as Map)
// Compiling takes most of the time, and most scenarios are of one text.
Map<String, Class> compiled = [:]
def answers = new JsonSlurper().parse(new File(args[0])).collectEntries { name, asked ->
    Jenkinsfile.scenario = [params: [:], labels: [], offline: [], rules: [], earlier: []] + asked
    Jenkinsfile.trace = []
    Jenkinsfile.result = 'SUCCESS'
    [Jenkinsfile.mode, Jenkinsfile.nodes, Jenkinsfile.stashes]*.clear()
    Jenkinsfile.agentGone = [:]
    Jenkinsfile.timeouts = 0
    String error = null
    try {
        def binding = new Binding([env: [NOTIFY_MAIL_TO: 'team@example.org', BUILD_NUMBER: '7', BUILD_URL: 'http://jenkins/7/'], scm: 'scm', none: 'none', currentBuild: new Build(results: [null] + Jenkinsfile.scenario.earlier)])
        Class script = compiled.computeIfAbsent(asked.jenkinsfile as String) { text ->
            new GroovyShell(Jenkinsfile.classLoader, settings).parse(text, 'Pipeline.groovy').class
        }
        InvokerHelper.createScript(script, binding).run()
    } catch (Wrong | MissingPropertyException | MissingMethodException | CompilationFailedException wrong) {
        error = wrong.message
    }
    [name, [result: Jenkinsfile.result, error: error, trace: Jenkinsfile.trace]]
}
println JsonOutput.toJson(answers)
