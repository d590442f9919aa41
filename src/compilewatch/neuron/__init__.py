"""AWS Neuron without torch: the compiler as a subprocess, its errors, its output, the device.

The parent shares this package, so that an HLO captured elsewhere is compiled on a machine that has
neuronx-cc and nothing else. Facts are those of the Neuron SDK 2.32.0 unless a place says otherwise;
none of this has run on Trainium or Inferentia hardware yet (see scripts/verify_neuron.sh).
"""
