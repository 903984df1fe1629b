// What the second matrix costs.
import {$, column, el, grid, line, put, scroll, short, whole} from "./draw.js"
import {panel, S, set} from "./state.js"

panel(
	"cost",
	() => ({vocab: S.vocab, dim: S.dim, total: S.total}),
	({tied, untied, saved_percent: saved, models}) => {
		for (const name of ["vocab", "dim"]) put(`#o${name}`, whole(S[name]))
		put("#ototal", short(tied))
		const matrix = untied - tied
		const piece = (n, kind, text) =>
			el(`div.${kind}`, {vars: {flex: `${n / untied} 0 0`}}, n / untied < 0.08 ? "" : text)
		const label = `layers ${short(tied - matrix)}, W_E ${short(matrix)}, W_U ${short(matrix)}`
		const pieces = [
			piece(tied - matrix, "rest", "layers"),
			piece(matrix, "e", "W_E"),
			piece(matrix, "untied.hatched", "")
		]
		const cells = m =>
			[whole(m.tied), whole(m.untied), whole(m.untied - m.tied), `${m.saved_percent.toFixed(1)} %`].map(
				text => el("td", text)
			)
		const top = ["model", "tied", "untied", "tying saves", "of the untied"].map(text => column(text))
		const rows = models.map(m => line(m.name, cells(m)))
		const of = `${saved.toFixed(1)} % of the untied model`
		put(
			$("#costbox"),
			el("div.stack", {role: "img", label}, pieces),
			el("p.note.first", "grey: layers · solid: W_E · hatched: W_U, only in an untied model"),
			el("p.readout", `Untied ${short(untied)}, tied ${short(tied)}: tying saves ${short(matrix)}, ${of}.`),
			scroll("Parameters", grid("sum", "Parameters of GPT-2 with either head", top, rows))
		)
	}
)
export function costSliders() {
	const slider = (name, label, least, most, digits) =>
		el(
			"label",
			label,
			el("output", {id: `o${name}`}),
			el("input", {
				...{type: "range", id: `c${name}`, label, step: 0.005},
				...{min: Math.log10(least), max: Math.log10(most), value: Math.log10(S[name])},
				oninput: e => set({[name]: +(10 ** e.target.value).toPrecision(digits)}, "cost")
			})
		)
	const sizes = [slider("vocab", "vocabulary", 1000, 300000, 3), slider("dim", "width", 64, 16384, 3)]
	put("#costsliders", sizes, slider("total", "whole model", 1e8, 1e12, 2))
}
