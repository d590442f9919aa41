"""The target `neuron`: compiling for AWS Neuron, and running where there is a device."""
