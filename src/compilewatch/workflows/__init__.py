"""The only modules that see store, plan, launchers and sinks together."""
