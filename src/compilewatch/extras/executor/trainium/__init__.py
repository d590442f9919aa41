"""The Trainium instance: started for a run, stopped after it, and its cost.

`ec2` is the only module that calls AWS, `sshd` checks whether the agent is ready, `session` stores
what a run has started, and `operation` combines them to up, down and status. boto3 is imported when
a verb is called.
"""
