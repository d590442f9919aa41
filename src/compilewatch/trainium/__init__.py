"""The Trainium instance: started for a run, stopped after it, and what that costs.

`ec2` is the only part that talks to AWS, `sshd` knows whether the agent answers, `session` is what
a run has started, and `operation` makes up, down and status of them. boto3 is imported when a verb
is called.
"""
