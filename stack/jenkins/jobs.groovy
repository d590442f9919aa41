// The jobs, complete: where their pipeline is, parameters, schedule and rotation of builds. Each start of
// the controller writes them anew from this file, so it is the only place that states any of these. The
// Jenkinsfiles contain the stages alone: what they declared would be lost at each start until a build ran.
import hudson.init.InitMilestone
import java.util.concurrent.TimeUnit
import jenkins.model.Jenkins
import jenkins.util.Timer

def repository = System.getenv('COMPILEWATCH_REPOSITORY') ?: 'git://repository/compilewatch'
def branchName = System.getenv('COMPILEWATCH_BRANCH') ?: 'main'

// Each of a job's parts is a closure that gets the part's context as its delegate.
def pipelineAt = { path ->
    return {
        cpsScm {
            scm {
                git {
                    remote { url(repository) }
                    branch(branchName)
                }
            }
            scriptPath(path)
            lightweight(false)
        }
    }
}

def rotatedAndStartedAt = { schedule ->
    return {
        disableConcurrentBuilds()
        buildDiscarder {
            strategy {
                logRotator {
                    daysToKeepStr('')
                    numToKeepStr('90')
                    artifactDaysToKeepStr('')
                    artifactNumToKeepStr('30')
                }
            }
        }
        if (schedule) {
            pipelineTriggers {
                triggers {
                    cron { spec(schedule) }
                }
            }
        }
    }
}

// `trim`: a space before or after a value, as a form easily gets, is no part of it.
def text = { context, parameter, byDefault, meaning ->
    context.stringParam {
        name(parameter)
        defaultValue(byDefault)
        description(meaning)
        trim(true)
    }
}

pipelineJob('compilewatch') {
    description('Which models compile without graph breaks: nightly, or with Build with Parameters. See docs/jenkins.md.')
    properties(rotatedAndStartedAt('H 3 * * *'))
    parameters {
        choiceParam('SOURCE', ['auto', 'library', 'hub', 'manifest'], 'Source of the models')
        text(delegate, 'TOP', '', 'How many of the most used models, or all; empty: 25, of a manifest all')
        text(delegate, 'TASKS', '', 'With SOURCE hub: only models of this pipeline tag')
        text(delegate, 'FAMILIES', '', 'Only models of these families: llama,bert')
        text(delegate, 'TARGETS', 'dynamo', 'Compile targets: dynamo,export, or all; neuron is a forecast there')
        text(delegate, 'MODES', 'eval', 'eval,train')
        text(delegate, 'SHARDS', '2', 'Number of parts of the sweep, spread over the agents with the label cpu')
        text(delegate, 'ENVIRONMENTS', '', 'Run in each of these: default,torch-2.9.0; empty: each target in its default one')
        text(delegate, 'BASELINE', 'auto', 'Compare with: auto, none or the id of a run')
        text(delegate, 'PROFILE', '', 'Also profile inference of so many of the most used models of each part; empty: none')
        text(delegate, 'FIX', '', 'Also search and verify fixes of the graph breaks, for so many minutes; empty: none')
        booleanParam('FAIL_ON_REGRESSION', true, 'Make the build unstable on a regression')
        booleanParam('SHAPES', false, 'Also call each model with ten sizes on dynamo, to count compilations; takes about eight times as long')
        booleanParam('FORECAST', true, 'Where the environment lowering exists, also forecast what Neuron can compile')
        booleanParam('TRAINIUM', false, 'Start the Trainium agent, run the Neuron target on it, stop it')
        booleanParam('FRESH', false, 'Ignore stored results and evaluate every model again')
    }
    definition(pipelineAt('Jenkinsfile'))
}

// A run of papers costs money, so it has a schedule only where PAPERS_SCHEDULE names one.
pipelineJob('papers') {
    description('Research papers to checked, compiled and executed code; by hand unless PAPERS_SCHEDULE is set. See docs/papers.md.')
    properties(rotatedAndStartedAt(System.getenv('PAPERS_SCHEDULE')))
    parameters {
        text(delegate, 'QUERY', '', 'Words or a query as JSON; empty: papers of RECENT_DAYS')
        text(delegate, 'RECENT_DAYS', '1', 'Papers of the last days, if QUERY is empty')
        text(delegate, 'MAX_PAPERS', '5', 'How many papers at most')
        text(delegate, 'MAX_USD', '5', 'The most that these papers may cost, in US dollars')
        text(delegate, 'MAX_TOKENS', '', 'The most tokens that these papers may use; empty: no limit')
        text(delegate, 'MAX_DEVICE_SECONDS', '', 'The most time of training, in seconds; empty: no limit')
        text(delegate, 'JOBS', '1', 'How many papers at a time')
        text(delegate, 'TARGETS', 'dynamo,export', 'Compile targets of the generated models')
        booleanParam('TRAINIUM', false, 'Start the instance of TRAINIUM_ENDPOINT for the trainings, and stop it afterwards')
        choiceParam('PROVIDER', ['bedrock', 'scripted'], 'The language model; scripted: prepared replies for the shipped papers')
        text(delegate, 'MODEL', '', 'Model of Bedrock; empty: BEDROCK_MODEL_ID of the agent')
    }
    definition(pipelineAt('stack/jenkins/papers.Jenkinsfile'))
}

// A build at the very first start shows that the set-up works. This script runs before Jenkins loads its
// queue, which discards whatever is queued by then, so the build is queued when Jenkins is up.
def first
first = {
    if (Jenkins.get().initLevel != InitMilestone.COMPLETED) {
        Timer.get().schedule(first as Runnable, 10, TimeUnit.SECONDS)
        return
    }
    def job = Jenkins.get().getItem('compilewatch')
    if (job.nextBuildNumber == 1) {
        job.scheduleBuild2(0)
    }
}
Timer.get().schedule(first as Runnable, 10, TimeUnit.SECONDS)
