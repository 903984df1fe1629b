// The drawing at the top, its switch, and the choice of a model for the panels that show one.
import {choice, code, nameOf, put} from "./draw.js"
import {$, $$, el, percent, setAttributes, shape, whole} from "./elements.js"
import {facts, forEachModel, headOf, model, OF_TEXT, promptTokens, set, state} from "./state.js"

// Boxes are [x, y, width, height], arrows are paths of SVG.
const WIDE = {
	size: [800, 262],
	tokens: [0, 32, 96, 84],
	W_E: [130, 32, 136, 84],
	blocks: [300, 32, 126, 84],
	matrix: [460, 32, 120, 84],
	W_U: [450, 204, 140, 56],
	bars: [618, 20, 182], // x, y, width
	switch: [418, 146, 204],
	same: [308, 155], // x, y of a text
	arrows: ["M98 74H126", "M268 74H296", "M428 74H456", "M582 74H612", "M520 116V142"],
	tied: "M418 163H198V120", // from the switch to a matrix
	untied: "M520 180V200"
}
const NARROW = {
	size: [360, 520],
	tokens: [60, 1, 240, 33],
	W_E: [95, 58, 170, 60],
	blocks: [95, 142, 170, 52],
	matrix: [95, 218, 170, 52],
	W_U: [110, 344, 140, 46],
	bars: [90, 396, 260],
	switch: [78, 292, 204],
	same: [36, 328],
	arrows: ["M180 36V54", "M180 120V138", "M180 196V214", "M265 244H326V392", "M180 270V288"],
	tied: "M78 309H40V88H91",
	untied: "M180 326V340"
}
const OF_SIDE = ["parts", "attention", "gradient"]
const narrowScreen = matchMedia("(max-width:700px)")

function drawnText(x, y, words, kind = "") {
	return shape("text", {x, y, class: kind}, words)
}
function drawnArrow(path, kind) {
	return shape("path", {d: path, class: `arrow ${kind}`, "marker-end": "url(#arrowhead)"})
}
const LINE_HEIGHT = 19
// A box with lines of text in its middle, of which the first one is the title.
function drawnBox([x, y, width, height], kind, lines) {
	const centre = y + height / 2 + 5 // y of a text is its base line, 5 below its middle
	const firstLine = centre - (LINE_HEIGHT * (lines.length - 1)) / 2
	const texts = lines.map((words, n) => {
		const lineKind = n === 0 ? "title" : ""
		return drawnText(x + width / 2, firstLine + LINE_HEIGHT * n, words, lineKind)
	})
	return [shape("rect", {x, y, width, height, rx: 6, class: `box ${kind}`}), texts]
}
// The four likeliest next tokens, with bars.
function drawnBars([x, y, width]) {
	const rows = facts.next[state.side].rows.slice(0, 4)
	const longest = width - 66 - 52 // the bars are between the names and the percents
	return rows.map((row, n) => {
		const top = y + 26 * n // a row is 26 high
		const length = Math.max(1, (longest * row.probability) / rows[0].probability)
		return [
			drawnText(x + 60, top + 20, nameOf(row).slice(0, 8), "end"),
			shape("rect", {x: x + 66, y: top + 7, height: 15, class: "share", width: length}),
			drawnText(x + width, top + 20, percent(row.probability), "end")
		]
	})
}
// Draw the model that is shown, from the prompt to the likeliest next tokens, and its switch.
export function drawFlow() {
	if (!facts.next) return // there is no answer yet
	const turn = state.copy ? "untied" : headOf()
	const places = narrowScreen.matches ? NARROW : WIDE
	put("#drawing", drawnModel(places), drawnMatrices(places, turn), drawnBars(places.bars))
	drawSwitch(places.switch, turn)
	const viewBox = `0 0 ${places.size.join(" ")}`
	// The copy has the predictions of the tied model, so the drawing keeps its colour.
	setAttributes($("#flow"), {viewBox, class: state.copy ? "tied" : turn})
	put("#flowsays", flowSays(model(), turn))
	$("#switch .code").dataset.turn = turn
	for (const box of $$(".which")) drawChoice(box)
}
// The prompt, W_E and the blocks.
function drawnModel(places) {
	const {vocab_size, n_embd, n_layer} = model()
	const isWide = places === WIDE
	const words = promptTokens().map(token => nameOf(token).slice(0, 10))
	const promptLines = isWide ? words.slice(-3) : [words.slice(-4).join("  ")]
	const matrixLines = ["W_E", `${whole(vocab_size)} × ${n_embd}`]
	if (isWide) matrixLines.push("a row per token")
	return [
		drawnBox(places.tokens, "", promptLines),
		drawnBox(places.W_E, "in", matrixLines),
		drawnBox(places.blocks, "", [`${n_layer} blocks`, "attention, MLP"]),
		drawnBox(places.matrix, "", ["× matrix", "= logits"]),
		places.arrows.map(path => drawnArrow(path, "plain"))
	]
}
// The switch's arrows to both matrices, and W_U.
function drawnMatrices(places, turn) {
	const {vocab_size, n_embd} = model()
	const arrows = ["tied", "untied"].map(kind => drawnArrow(places[kind], kind === turn ? kind : "other"))
	if (turn === "untied") {
		const size = `${n_embd} × ${whole(vocab_size)}`
		return [arrows, drawnBox(places.W_U, state.copy ? "copy" : "out", ["W_U", size])]
	}
	const [x, y] = places.same
	const same = places === WIDE ? "the same matrix" : "the same"
	return [arrows, drawnBox(places.W_U, "none", ["no W_U"]), drawnText(x, y, same, "tied")]
}
function drawSwitch([x, y, width], turn) {
	setAttributes($("#turn"), {x, y, width})
	const option = (kind, text) => ({text, isOn: kind === turn, go: () => setTurn(kind)})
	const options = [option("tied", "tied: W_E.T"), option("untied", "untied: W_U")]
	put("#turn", choice("The switch: the output matrix", options))
}
function flowSays(m, turn) {
	const read = `W_E has a row of ${m.n_embd} numbers for each of ${whole(m.vocab_size)} tokens. `
	const numbers = `${whole(m.vocab_size * m.n_embd)} numbers`
	if (state.copy)
		return [
			el("b", `${m.name} has no W_U. `),
			"An untied copy of it starts with W_U = W_E.T: the same predictions, until training changes one: ",
			code(`tiedgpt train FILE --from ${m.name} --head untied --out DIR`)
		]
	if (turn === "untied")
		return [
			el("b.untied", `Untied, the model ${m.name}: `),
			read,
			`A second matrix, W_U, scores each token: ${numbers} of its own.`
		]
	const useless = " But this model learned with W_U: its predictions are now useless."
	return [
		el("b.tied", `Tied, the model ${m.name}: `),
		read,
		`The same W_E, transposed, scores each token: ${numbers} serve twice.`,
		m.heads[0] === "tied" ? null : useless
	]
}
// Turn the switch of the model that is shown. One that has no W_U is shown as an untied copy.
function setTurn(head) {
	if (model().heads.includes(head)) set({copy: 0, heads: state.heads.with(state.side, head)}, ...OF_TEXT)
	else set({copy: 1}, ...OF_SIDE)
	drawFlow()
}
function drawChoice(box) {
	const choose = i => {
		set({side: i, copy: 0}, ...OF_SIDE)
		drawFlow()
	}
	const option = i => ({text: model(i).name, isOn: i === state.side, go: () => choose(i)})
	put(box, facts.models.length > 1 ? choice("Model", forEachModel(option)) : [])
	$$("button", box).forEach((b, i) => b.classList.add(headOf(i)))
}
narrowScreen.addEventListener("change", drawFlow)
