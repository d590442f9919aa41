// The jobs that are there at the first start. The Jenkinsfile's own parameters and schedule are known
// to Jenkins after its first build, so one is queued; it is small, and shows that everything is wired.
def repository = System.getenv('COMPILEWATCH_REPOSITORY') ?: 'git://repository/compilewatch'
def branchName = System.getenv('COMPILEWATCH_BRANCH') ?: 'main'

pipelineJob('compilewatch') {
    description('Which models compile whole: nightly, or with Build with Parameters. See docs/jenkins.md.')
    definition {
        cpsScm {
            scm {
                git {
                    remote { url(repository) }
                    branch(branchName)
                }
            }
            scriptPath('Jenkinsfile')
            lightweight(false)
        }
    }
}

queue('compilewatch')
