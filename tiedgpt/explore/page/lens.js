// The logit lens: what each layer predicts.
import {column, el, grid, line, note, paint, percent, plain, put, scroll} from "./draw.js"
import {common, each, model, ofModel, panel} from "./state.js"

const cell = (here, cells) => {
	const [first] = cells
	const title = cells.map(c => `${plain(c.text)} ${percent(c.probability)}`).join("\n")
	const itself = first.id === here.id ? "↺ " : ""
	const td = el("td", {title}, itself, plain(first.text), el("small", percent(first.probability)))
	return paint(td, 0.06 + first.probability, 1.06)
}
function drawLens({tokens, layers}, i) {
	const row = (cells, n) =>
		line(
			n ? `block ${n - 1}` : "embedding",
			cells.map((c, j) => cell(tokens[j], c))
		)
	const top = [column("after"), tokens.map(t => column(plain(t.text)))]
	const {name} = model(i)
	const itself = cells => cells.filter(([first], j) => first.id === tokens[j].id).length
	const [first, last] = [layers[0], layers.at(-1)].map(itself)
	return ofModel(
		i,
		null,
		scroll(
			`Logit lens of ${name}`,
			grid("heat.lens", `What each layer of ${name} predicts`, top, layers.map(row))
		),
		note(
			`The embedding predicts the same token again (↺) in ${first} of ${tokens.length} places, `,
			`the last block in ${last}.`
		)
	)
}
panel(
	"lens",
	() => each(common),
	found => put("#lensbox", found.map(drawLens))
)
