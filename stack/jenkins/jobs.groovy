// The jobs that exist at the first start. Jenkins knows the Jenkinsfile's parameters and schedule after
// the first build, so a small one is queued, which also shows that the set-up works.
def repository = System.getenv('COMPILEWATCH_REPOSITORY') ?: 'git://repository/compilewatch'
def branchName = System.getenv('COMPILEWATCH_BRANCH') ?: 'main'

pipelineJob('compilewatch') {
    description('Which models compile without graph breaks: nightly, or with Build with Parameters. See docs/jenkins.md.')
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

pipelineJob('papers') {
    description('Research papers to checked, compiled and executed code; by hand unless PAPERS_SCHEDULE is set. See docs/papers.md.')
    definition {
        cpsScm {
            scm {
                git {
                    remote { url(repository) }
                    branch(branchName)
                }
            }
            scriptPath('stack/jenkins/papers.Jenkinsfile')
            lightweight(false)
        }
    }
}

queue('compilewatch')
