"""A double of torch_neuronx.experimental."""
