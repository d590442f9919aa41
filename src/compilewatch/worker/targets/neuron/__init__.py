"""The target `neuron`: compiling for AWS Neuron, and running if there is a device."""
