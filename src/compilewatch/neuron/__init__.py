"""AWS Neuron without torch: the compiler as a subprocess, its errors, its output, the device.

The parent uses this package too, so that an HLO module that was captured elsewhere can be compiled
on a machine that only has neuronx-cc. Facts are those of the Neuron SDK 2.32.0 unless stated
otherwise; none of this has run on Trainium or Inferentia hardware yet (see
scripts/verify_neuron.sh).
"""
