"""Language models of any kind: is one tied, and how many parameters does it have?

headers.py    config.json and the headers of the weights, here or on the hub
ties.py       is a model tied: what config.json says, what the files hold, who reads what
counting.py   how many parameters it has
"""
