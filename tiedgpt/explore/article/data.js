// What scripts/page/article.py puts into the page: figures, and the shipped models.

import {readModel} from "./gpt2.js"
import {readTokenizer} from "./tokenizer.js"

const json = id => JSON.parse(document.getElementById(id).textContent)

export const readFigures = () => json("figures") // -> figures.json

// -> {tokenizer, tied: {params, config}, untied: {params, config}}
export function readModels() {
	const {tokens, merges, tied, untied} = json("models")
	const vocabulary = Object.fromEntries(tokens.map((token, id) => [token, id]))
	const read = ({weights, config}) => readModel(bytesOf(weights).buffer, config)
	return {tokenizer: readTokenizer(vocabulary, merges), tied: read(tied), untied: read(untied)}
}

// The bytes of a text in base64. (Uint8Array.from would take ten times as long.)
function bytesOf(base64) {
	const characters = atob(base64)
	const bytes = new Uint8Array(characters.length)
	for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i)
	return bytes
}
