"""Language models. Each speaks Bedrock's Converse API over HTTP."""
