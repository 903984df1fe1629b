// What the second matrix costs.
import {column, el, grid, line, put, scroll, short, whole} from "./draw.js"
import {panel, set, state} from "./state.js"

panel(
	"cost",
	() => ({vocab: state.vocab, dim: state.dim, total: state.total}),
	({tied, untied, percent_of_tied, percent_of_untied, models}) => {
		put("#ovocab", whole(state.vocab))
		put("#odim", whole(state.dim))
		put("#ototal", short(tied))
		const matrix = untied - tied
		const saving = `the second matrix has ${short(matrix)}, ${shares({percent_of_tied, percent_of_untied})}`
		put(
			"#costbox",
			drawStack(tied, untied),
			el("p.note.first", "grey: layers · solid: W_E · hatched: W_U, only in an untied model"),
			el("p.readout", `Untied ${short(untied)}, tied ${short(tied)}: ${saving}.`),
			scroll("Parameters", modelTable(models))
		)
	}
)
const shares = ({percent_of_tied, percent_of_untied}) => {
	const ofUntied = `${percent_of_untied.toFixed(1)} % of the untied`
	return `${percent_of_tied.toFixed(1)} % of the tied model and ${ofUntied}`
}
// The layers and the two matrices of an untied model, as wide as they are large.
function drawStack(tied, untied) {
	const matrix = untied - tied
	const layers = tied - matrix
	const piece = (size, kind, text) => {
		const share = size / untied
		return el(`div.${kind}`, {vars: {flex: `${share} 0 0`}}, share < 0.08 ? "" : text)
	}
	const label = `layers ${short(layers)}, W_E ${short(matrix)}, W_U ${short(matrix)}`
	return el(
		"div.stack",
		{role: "img", label},
		piece(layers, "rest", "layers"),
		piece(matrix, "e", "W_E"),
		piece(matrix, "untied.hatched", "")
	)
}
function modelTable(models) {
	const titles = ["model", "tied", "untied", "difference", "of the tied", "of the untied"]
	const rows = models.map(({name, tied, untied, percent_of_tied, percent_of_untied}) =>
		line(
			name,
			el("td", whole(tied)),
			el("td", whole(untied)),
			el("td", whole(untied - tied)),
			el("td", `${percent_of_tied.toFixed(1)} %`),
			el("td", `${percent_of_untied.toFixed(1)} %`)
		)
	)
	const top = titles.map(text => column(text))
	return grid("sum", "Parameters of GPT-2 with either head", top, rows)
}
export function drawControls() {
	put(
		"#costsliders",
		logarithmicSlider("vocab", "vocabulary", {least: 1000, most: 300000, digits: 3}),
		logarithmicSlider("dim", "width", {least: 64, most: 16384, digits: 3}),
		logarithmicSlider("total", "whole model", {least: 1e8, most: 1e12, digits: 2})
	)
}
function logarithmicSlider(name, label, {least, most, digits}) {
	const input = el("input", {
		type: "range",
		id: `c${name}`,
		label,
		step: 0.005,
		min: Math.log10(least),
		max: Math.log10(most),
		value: Math.log10(state[name]),
		oninput: e => {
			const size = 10 ** e.target.value
			set({[name]: Number(size.toPrecision(digits))}, "cost")
		}
	})
	return el("label", label, el("output", {id: `o${name}`}), input)
}
