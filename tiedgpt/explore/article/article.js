// The article. (A placeholder: it writes what follows a word.)

import {readModels} from "./data.js"
import {PATHS, topK} from "./gpt2.js"
import {encode, tokenText} from "./tokenizer.js"

const {tokenizer, tied, untied} = readModels()
const [id] = encode(" my", tokenizer)
for (const {params, config} of [untied, tied]) {
	const logits = PATHS.mlp0(id, params, {config, tied: config.tie_word_embeddings})
	const line = document.createElement("p")
	line.textContent = topK(logits, 3).map(other => tokenText(other, tokenizer))
	document.querySelector("main").append(line)
}
