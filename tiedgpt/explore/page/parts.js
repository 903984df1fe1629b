// The parts of a logit, and the predictions without some of them.
import {
	bars,
	becomes,
	button,
	column,
	corner,
	grid,
	highest,
	line,
	nameOf,
	note,
	on,
	paint,
	put,
	range,
	roving,
	side
} from "./draw.js"
import {$, $$, el, fixed, percent, whole} from "./elements.js"
import {headOf, model, panel, promptFields, say, set, state} from "./state.js"

const partName = name =>
	name.replace(/attn\.(\d+)\.head\.(\d+)/, "head $2 of block $1").replace(/mlp\.(\d+)/, "the MLP of block $1")

panel(
	"parts",
	() => ({...promptFields(), removed: state.removed, token: state.token}),
	({tokens: [before], ablated, parts, likeliest, change}) => {
		// `before` has the prediction with all parts, `ablated` that without the removed ones.
		drawTokenChoice(before, likeliest)
		$("#putback").disabled = !state.removed.length
		drawParts(parts)
		const removed = state.removed.map(partName).join(", ")
		put(
			"#partsout",
			el("b", predictionText(before)),
			"; the logit is the sum of all numbers in the table.",
			largestPartText(parts),
			ablated && [`\nWithout ${removed}: `, el("b", predictionText(ablated.tokens[0])), "."]
		)
		if (ablated) say($("#partsout").textContent)
		put("#partsbars", change ? drawChange(change) : [])
	}
)
function drawTokenChoice(chosen, likeliest) {
	const isListed = likeliest.some(token => token.id === chosen.id)
	const tokens = isListed ? likeliest : [chosen, ...likeliest]
	put(
		"#token",
		tokens.map(token => el("option", {value: token.id, selected: token.id === chosen.id}, nameOf(token)))
	)
}
const predictionText = token => {
	const {probability, logit, rank} = token
	return `“${nameOf(token)}” has ${percent(probability)}, logit ${fixed(logit)}, rank ${whole(rank)}`
}
// Which head or MLP adds most; null for a model without layers.
function largestPartText(parts) {
	const names = Object.keys(parts).filter(name => /head|^mlp\.\d+$/.test(name))
	if (!names.length) return null
	const largest = names.reduce((name, other) => (parts[other] > parts[name] ? other : name))
	return ` Most is added by ${partName(largest)} (${fixed(parts[largest])}).`
}
// A row for each block: its heads, their bias, its MLP and the bias of that.
function drawParts(parts) {
	const {n_head, n_layer} = model()
	const most = highest(Object.values(parts))
	const digits = n_head > 8 ? 1 : 2 // many columns are narrow
	const columns = n_head + 3 // the heads, their bias, the MLP, its bias
	// Heads and MLPs can be removed: they are buttons.
	const fixedCell = (name, colSpan = 1) =>
		paint(el("td", {colSpan}, fixed(parts[name], digits)), parts[name], most)
	const buttonCell = name => el("td", paint(partButton(name, parts[name], digits), parts[name], most))
	const block = n =>
		line(
			`block ${n}`,
			range(n_head).map(h => buttonCell(`attn.${n}.head.${h}`)),
			fixedCell(`attn.${n}.bias`),
			buttonCell(`mlp.${n}`),
			fixedCell(`mlp.${n}.bias`)
		)
	const rows = [
		line("wte", fixedCell("wte", columns)),
		line("wpe", fixedCell("wpe", columns)),
		range(n_layer).map(block),
		line("ln_f.bias", fixedCell("ln_f.bias", columns))
	]
	const titles = range(n_head).map(h => column(n_head > 8 ? `${h}` : `head\u00a0${h}`))
	const top = [corner(), titles, column("bias"), column("MLP"), column("bias")]
	const table = grid("heat.parts", "What each part adds to the logit", top, rows)
	table.style.minWidth = `${6 + 2.9 * columns}em` // the names of the rows, and a number in each column
	put("#partsbox", side(headOf(), table)) // in the colour of tied or untied
	// The arrow keys go from button to button. A row has one for each head and one for the MLP.
	if (n_layer) roving(table, $$("button", table), n_head + 1)
}
// A button with a part's number. It removes the part from the model, or puts it back.
function partButton(name, value, digits) {
	const isRemoved = state.removed.includes(name)
	const others = state.removed.filter(other => other !== name)
	const removed = isRemoved ? others : [...others, name]
	const label = `${partName(name)}: ${fixed(value)}`
	const attributes = {key: name, pressed: isRemoved, label}
	return button(fixed(value, digits), () => set({removed}, "parts"), attributes)
}
function drawChange(change) {
	const most = Math.max(...change.flatMap(row => [row.probability, row.without]))
	const rows = change.map(row =>
		el(
			"div.row",
			el("span.t", nameOf(row)),
			bars(row.probability, row.without, most),
			el("span.p", becomes(row.probability, row.without))
		)
	)
	return side(headOf(), note("Outline: with all parts. Bar: without what is removed."), rows)
}
on("#token", "change", e => set({token: Number(e.target.value)}, "parts"))
on("#putback", "click", () => set({removed: []}, "parts"))
