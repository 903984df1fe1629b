// The calculator: what the second table is of a model.

import {$, $$, fixed, selectAtTap, short} from "../page/elements.js"

const UNITS = {"": 1, k: 1e3, m: 1e6, b: 1e9, t: 1e12}
const MOST = 1e15 // of each number

export function readNumber(text) {
	// "50,000", "7B", "7e9" -> a number; NaN for anything else
	const match = text.trim().match(/^(\d[\d,_ ]*\.?\d*(?:e\d+)?)\s*([kmbt]?)$/i)
	if (!match) return Number.NaN
	return Number(match[1].replace(/[,_ ]/g, "")) * UNITS[match[2].toLowerCase()]
}

function sayShare(vocab, dim, total) {
	const isSize = number => number >= 1 && number <= MOST // false for NaN
	if (![vocab, dim, total].every(isSize))
		return "Three numbers are needed, such as 50,000 and 7B, of at most 1000T."
	const matrix = vocab * dim // the numbers of one table
	const numbers = `${short(matrix)} numbers`
	if (matrix > total) return `One table of ${numbers} is more than the whole model.`
	const inPercent = share => `${fixed(100 * share, 1)} %`
	const ifTied = inPercent(matrix / (total + matrix)) // untied, it would have a second table
	if (2 * matrix > total)
		return `${numbers}: ${ifTied} if this is the size of the tied model. The untied one has two tables, and is larger.`
	return `${numbers}: ${inPercent(matrix / total)} of an untied model of this size, ${ifTied} if this is the size of the tied one`
}

export function readyCalculator() {
	$("#calculator").oninput = () => {
		const [vocab, dim, total] = ["#vocab", "#dim", "#total"].map(name => readNumber($(name).value))
		$("#answer").textContent = sayShare(vocab, dim, total)
	}
	for (const input of $$("#calculator input")) selectAtTap(input)
	$("#calculator").onsubmit = event => event.preventDefault()
}
