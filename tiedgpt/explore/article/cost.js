// The calculator: what the second table is of a model.

import {find} from "./page.js"

const UNITS = {"": 1, k: 1e3, m: 1e6, b: 1e9, t: 1e12}

export function readNumber(text) {
	// "50,000", "7B", "7e9" -> a number; NaN for anything else
	const match = text.trim().match(/^(\d[\d,_ ]*\.?\d*(?:e\d+)?)\s*([kmbt]?)$/i)
	if (!match) return Number.NaN
	return Number(match[1].replace(/[,_ ]/g, "")) * UNITS[match[2].toLowerCase()]
}

export function shareOf(vocab, dim, total) {
	// -> {matrix, share}: the numbers of one table, as a share of the untied model with two
	const matrix = vocab * dim
	return {matrix, share: matrix / total}
}

export function shortNumber(count) {
	// 204800000 -> "204.8M"
	const unit = Object.keys(UNITS).findLast(name => count >= UNITS[name]) ?? ""
	return `${(count / UNITS[unit]).toFixed(unit ? 1 : 0)}${unit.toUpperCase()}`
}

function sayShare(vocab, dim, total) {
	if (![vocab, dim, total].every(number => number > 0))
		return "Three numbers are needed, such as 50,000 and 7B."
	const {matrix, share} = shareOf(vocab, dim, total)
	if (share > 0.5) return `Two tables of ${shortNumber(matrix)} numbers are more than the whole model.`
	return `${shortNumber(matrix)} numbers, ${(100 * share).toFixed(1)} % of the untied model`
}

export function readyCalculator() {
	const numbers = () => ["#vocab", "#dim", "#total"].map(name => readNumber(find(name).value))
	find("#calculator").oninput = () => {
		find("#answer").textContent = sayShare(...numbers())
	}
	find("#calculator").onsubmit = event => event.preventDefault()
}
