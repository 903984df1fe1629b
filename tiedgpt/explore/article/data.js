// What tiedgpt/explore/article.py puts into the page: figures, and the shipped models.

import {readModel} from "./gpt2.js"
import {readTokenizer} from "./tokenizer.js"

const json = id => JSON.parse(document.getElementById(id).textContent)

export const readFigures = () => json("figures") // -> figures.json

// -> {tokenizer, tied: {params, config}, untied: {params, config}}
export function readModels() {
	const {vocabulary, merges, tied, untied} = json("models")
	const read = ({weights, config}) => {
		const bytes = Uint8Array.from(atob(weights), character => character.charCodeAt(0))
		return readModel(bytes.buffer, config)
	}
	return {tokenizer: readTokenizer(vocabulary, merges), tied: read(tied), untied: read(untied)}
}
