"""Text from an MoE model whose experts lie on several processes: `python -m ubep.generate --help`.

model.py is the model, exchange.py brings its tokens to the experts and back (over ubep, or over
gloo, to compare), serve.py takes sequences through both, command.py is the command.
"""
