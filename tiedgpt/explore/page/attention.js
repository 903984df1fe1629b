// The attention patterns: a picture of each head, and a table of the chosen head.
import {button, floats, heat, mark, note, points, put, range, roving, side, textOf} from "./draw.js"
import {$, el, fixed} from "./elements.js"
import {headOf, model, panel, promptFields, promptTokens, set, state} from "./state.js"

panel(
	"attention",
	() => {
		const {n_head, n_layer} = model()
		// The address, or the other model, may have chosen a head that this model does not have.
		state.layer = Math.max(0, Math.min(state.layer, n_layer - 1))
		state.head = Math.min(state.head, n_head - 1)
		// Without layers there is no pattern: the server says so, and the other model's is removed.
		if (!n_layer) for (const box of ["#heads", "#attnbox"]) put(box)
		return promptFields()
	},
	({tokens, patterns}) => {
		const weights = floats(patterns) // [layers, heads, T, T]
		const T = tokens.length
		drawHeads(weights, tokens)
		drawPattern(patternOf(weights, T, state.layer, state.head), tokens)
	}
)
// The pattern of one head: for each token, how much it takes from each token, from 0 to 1.
function patternOf(weights, T, layer, head) {
	const first = (layer * model().n_head + head) * T * T // of the head's numbers, row by row
	return range(T).map(i => {
		const row = weights.subarray(first + i * T, first + (i + 1) * T)
		return [...row]
	})
}
function drawHeads(weights, tokens) {
	const {n_head, n_layer} = model()
	const pattern = (layer, head) => patternOf(weights, tokens.length, layer, head)
	const cells = range(n_layer).flatMap(layer =>
		range(n_head).map(head => {
			const choose = () => {
				set({layer, head}) // for the address; the server is not asked again
				drawPattern(pattern(layer, head), tokens)
			}
			return headButton(pattern(layer, head), layer, head, choose)
		})
	)
	$("#heads").style.gridTemplateColumns = `repeat(${n_head},minmax(24px,1fr))`
	put("#heads", cells)
	roving($("#heads"), cells, n_head, state.layer * n_head + state.head)
}
function headButton(pattern, layer, head, choose) {
	const roots = pattern.map(row => row.map(Math.sqrt)) // so that small weights show
	const attributes = {key: `head${layer}.${head}`, title: `block ${layer}, head ${head}`}
	return button(points(roots, 1, headOf()), choose, attributes)
}
function drawPattern(pattern, tokens) {
	const names = tokens.map(textOf)
	// A token does not look at later ones: their cells are empty.
	const M = pattern.map((row, i) => row.map((weight, j) => (j > i ? null : weight)))
	const title = `block ${state.layer}, head ${state.head}`
	const options = {max: 1, show: shortWeight, shade: Math.sqrt, caption: `Attention of ${title}`}
	const table = heat(names, names, M, options)
	const isCut = promptTokens().length > tokens.length
	const cutText = `The last ${tokens.length} tokens. The columns of earlier ones are left out.`
	put("#attnbox", side(headOf(), el("h3", mark(), title), table, isCut ? note(cutText) : null))
	for (const cell of $("#heads").children) cell.setAttribute("aria-pressed", cell.title === title)
}
// ".25" for 0.25, and "·" for 0.00.
function shortWeight(weight) {
	const text = fixed(weight).replace(/^0/, "")
	return text === ".00" ? "·" : text
}
