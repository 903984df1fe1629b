"""Language models of any kind: is one tied, who reads it how, and how many parameters has it?

headers.py    config.json and the headers of the weights, here or on the hub
kinds.py      the facts in kinds.json: how transformers reads each state of flags and files
matrices.py   which stored tensors are the matrices, and which of them are equal
ties.py       the verdict: what config.json says, what the files hold, who reads what
mends.py      what to change, so that all read what the files hold
adapters.py   what an adapter of PEFT makes of the tie
counting.py   how many parameters
"""
