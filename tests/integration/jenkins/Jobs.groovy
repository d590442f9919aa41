// Runs jobs.groovy without Jenkins: each method is one that the sources of Job DSL have in its context, or, where
// a context can be extended, a symbol of Jenkins with its attributes. java … groovy.ui.GroovyMain Jobs.groovy
// FILE FACTS prints {"jobs": {name: calls}, "queued": …}: a call is [name, arguments] or [name, calls].
import groovy.json.JsonOutput
import groovy.json.JsonSlurper

class Wrong extends Error { Wrong(String why) { super(why) } }

class Block {
    static Map facts
    List calls = []

    def methodMissing(String name, Object given) {
        List args = given as List
        Closure body = args && args.last() instanceof Closure ? args.last() as Closure : null
        Block inner = opened(name, body ? args.init() : args, body)
        if (body) {
            body.delegate = inner
            body.resolveStrategy = Closure.DELEGATE_FIRST
            body.call()
        }
        inner?.close()
        calls << [name, inner ? inner.calls : args]
        return null
    }

    // The context of the closure that a method gets, if any; fails where there is no such method.
    Block opened(String name, List args, Closure body) { throw new Wrong("nothing here takes ${name}") }

    void close() { }

    static Block model(String kind, String symbol) {
        def found = facts.classes.find { key, value -> kind in value.kinds && symbol in value.symbols }
        if (!found) { throw new Wrong("Jenkins has no ${kind} ${symbol}") }
        return new Model(what: found.value)
    }
}

// What the built-in DSL has: a method takes values, or a closure with a context of its own.
class Context extends Block {
    String context

    Block opened(String name, List args, Closure body) {
        Map known = facts.dsl[context]
        if (known.methods.containsKey(name) && (body == null || known.methods[name])) {
            return body ? new Context(context: known.methods[name]) : null
        }
        if (!known.extensible || args) { throw new Wrong("${context} has no ${name}") }
        return model(known.kind, name)
    }
}

// An object of Jenkins: each attribute is one that its class binds, and those that it needs are there.
class Model extends Block {
    Map what

    Block opened(String name, List args, Closure body) {
        String type = what.needs[name] ?: what.takes[name]
        if (type == null) { throw new Wrong("${what.kinds} takes no ${name}") }
        return body ? new Several(kind: type) : null
    }

    void close() {
        List missing = (what.needs.keySet() as List) - calls*.get(0)
        if (missing) { throw new Wrong("${what.kinds} needs ${missing.join(', ')}") }
    }
}

class Several extends Block {
    String kind

    Block opened(String name, List args, Closure body) { model(kind, name) }
}

abstract class JobScript extends Script {
    static Map jobs = [:]
    void pipelineJob(String name, Closure body) {
        Context job = new Context(context: 'WorkflowJob')
        body.delegate = job
        body.resolveStrategy = Closure.DELEGATE_FIRST
        body.call()
        jobs[name] = job.calls
    }
}

def loader = new GroovyClassLoader(JobScript.classLoader)
loader.parseClass('package hudson.init; enum InitMilestone { STARTED, COMPLETED }')
loader.parseClass('''package jenkins.model
class Job { String name; int nextBuildNumber; List queued; void scheduleBuild2(int delay) { queued << name } }
class Jenkins {
    static Jenkins instance = new Jenkins()
    static Jenkins get() { instance }
    Object initLevel = hudson.init.InitMilestone.STARTED
    int next = 1
    List queued = []
    Object getItem(String name) {
        if (initLevel != hudson.init.InitMilestone.COMPLETED) { throw new IllegalStateException('no job is loaded') }
        return new Job(name: name, nextBuildNumber: next, queued: queued)
    }
}''')
loader.parseClass('''package jenkins.util
class Timer {
    static List waiting = []
    static Timer get() { new Timer() }
    void schedule(Runnable what, long delay, java.util.concurrent.TimeUnit unit) { waiting << what }
}''')
Block.facts = new JsonSlurper().parse(new File(args[1])) as Map
def settings = new org.codehaus.groovy.control.CompilerConfiguration(scriptBaseClass: JobScript.name)
String error = null
Map queued = [:]
try {
    new GroovyShell(loader, settings).parse(new File(args[0])).run()
    def jenkins = loader.loadClass('jenkins.model.Jenkins').get()
    def timer = loader.loadClass('jenkins.util.Timer')
    def tick = { List due = timer.waiting.collect(); timer.waiting.clear(); due*.run() }
    tick()
    queued['while it starts'] = jenkins.queued.collect()
    jenkins.initLevel = loader.loadClass('hudson.init.InitMilestone').COMPLETED
    def waiting = timer.waiting.collect()
    tick()
    queued['at the first start'] = jenkins.queued.collect()
    jenkins.queued.clear()
    jenkins.next = 46
    waiting*.run()
    queued['after 45 builds'] = jenkins.queued.collect()
    queued['left'] = timer.waiting.size()
} catch (Wrong | MissingPropertyException | MissingMethodException wrong) {
    error = wrong.message
}
println JsonOutput.toJson([jobs: JobScript.jobs, queued: queued, error: error])
