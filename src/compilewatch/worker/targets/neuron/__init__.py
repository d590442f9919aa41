"""The Neuron target and its routes."""
