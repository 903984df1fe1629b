// The calculator: what the second table is of a model.

import {$, $$, fixed, selectAtTap, short} from "../page/elements.js"

const UNITS = {"": 1, k: 1e3, m: 1e6, b: 1e9, t: 1e12}
const MOST = 1e15 // of each number

export function readNumber(text) {
	// "50,000", "1.5B", "7e9" -> a number, as the command line reads it; NaN for anything else. A comma stands
	// before three digits: "1,5B" is not read as 15B, and "50.000" not as 50.
	const written = text.trim().replaceAll("_", "")
	if (/^\d{1,3}(,\d{3})+$/.test(written)) return Number(written.replaceAll(",", ""))
	if (/^\d{1,3}(\.\d{3})+$/.test(written)) return Number.NaN
	const match = written.match(/^(\d+\.?\d*(?:e\d+)?)\s*([kmbt]?)$/i)
	return match ? Number(match[1]) * UNITS[match[2].toLowerCase()] : Number.NaN
}

function sayShare(vocab, dim, total) {
	const isSize = number => number >= 1 && number <= MOST // false for NaN
	if (![vocab, dim, total].every(isSize))
		return "Three numbers are needed, such as 50,000 or 1.5B, of at most 1000T. A comma groups three digits; a fraction has a point."
	const matrix = vocab * dim // the numbers of one table
	const numbers = `${short(matrix)} numbers`
	if (matrix > total) return `One table of ${numbers} is more than the whole model.`
	const inPercent = share => `${fixed(100 * share, 1)} %`
	const ifTied = inPercent(matrix / (total + matrix)) // untied, it would have a second table
	const tied = `${numbers}. If yours is the tied model, a second table would be ${ifTied} of the untied one.`
	if (2 * matrix > total) return `${tied} It is not the untied model, which has two tables and is larger.`
	return `${tied} If yours is the untied model, it is ${inPercent(matrix / total)}.`
}

export function readyCalculator() {
	$("#calculator").oninput = () => {
		const [vocab, dim, total] = ["#vocab", "#dim", "#total"].map(name => readNumber($(name).value))
		$("#answer").textContent = sayShare(vocab, dim, total)
	}
	for (const input of $$("#calculator input")) selectAtTap(input)
	$("#calculator").onsubmit = event => event.preventDefault()
}
