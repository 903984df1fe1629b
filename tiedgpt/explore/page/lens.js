// The logit lens: what each layer predicts.
import {column, grid, line, nameOf, note, paint, put, scroll} from "./draw.js"
import {el, percent} from "./elements.js"
import {forEachModel, model, ofModel, panel, promptFields} from "./state.js"

panel(
	"lens",
	() => forEachModel(promptFields),
	lenses => put("#lensbox", lenses.map(drawLens))
)
function drawLens({tokens, layers}, i) {
	const {name} = model(i)
	const top = [column("after"), tokens.map(token => column(nameOf(token)))]
	const rows = layers.map(({positions}, n) => lensRow(positions, n, tokens))
	const table = grid("heat.lens", `What each layer of ${name} predicts`, top, rows)
	// The likeliest next token is the token itself.
	const isRepeated = ([first], j) => first.id === tokens[j].id
	const byEmbedding = layers[0].positions.filter(isRepeated).length
	const byLastBlock = layers.at(-1).positions.filter(isRepeated).length
	const repeats = note(
		`The embedding predicts the same token again (↺) in ${byEmbedding} of ${tokens.length} places, `,
		`the last block in ${byLastBlock}.`
	)
	return ofModel(i, null, scroll(`Logit lens of ${name}`, table), repeats)
}
function lensRow(cells, n, tokens) {
	const title = n === 0 ? "embedding" : `block ${n - 1}`
	return line(
		title,
		cells.map((likeliest, j) => lensCell(likeliest, tokens[j]))
	)
}
// The likeliest tokens after `token`, the first one shown and the others in the title.
function lensCell(likeliest, token) {
	const [first] = likeliest
	const lines = likeliest.map(other => `${nameOf(other)} ${percent(other.probability)}`)
	const sign = first.id === token.id ? "↺ " : ""
	const cell = el(
		"td",
		{title: lines.join("\n")},
		sign,
		nameOf(first),
		el("small", percent(first.probability))
	)
	// 0.06: a probability of 0 has some colour too, that of the model's head.
	return paint(cell, 0.06 + first.probability, 1.06)
}
