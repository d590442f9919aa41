"""`compilewatch shapes`: what a model compiles for the sizes that it is served with."""
