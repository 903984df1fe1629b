// The drawing at the top, its switch, and the choice of a model for the panels that show one.
import {$, $$, choice, code, el, percent, plain, put, range, shape, whole} from "./draw.js"
import {each, facts, headOf, model, OF_TEXT, placed, S, set} from "./state.js"

const WIDE = {
	size: [800, 262],
	boxes: [
		[0, 32, 96, 84],
		[130, 32, 136, 84],
		[300, 32, 126, 84],
		[460, 32, 120, 84]
	],
	...{bars: [618, 20, 182], W_U: [450, 204, 140, 56], switch: [418, 146, 204], same: [308, 155]},
	...{tied: "M418 163H198V120", untied: "M520 180V200", down: "M520 116V142"},
	arrows: ["M98 74H126", "M268 74H296", "M428 74H456", "M582 74H612"]
}
const NARROW = {
	size: [360, 520],
	boxes: [
		[60, 1, 240, 33],
		[95, 58, 170, 60],
		[95, 142, 170, 52],
		[95, 218, 170, 52]
	],
	...{bars: [90, 396, 260], W_U: [110, 344, 140, 46], switch: [78, 292, 204], same: [36, 328]},
	...{tied: "M78 309H40V88H91", untied: "M180 326V340", down: "M180 270V288"},
	arrows: ["M180 36V54", "M180 120V138", "M180 196V214", "M265 244H326V392"]
}
const narrow = matchMedia("(max-width:700px)")
const text = (x, y, said, kind = "") => shape("text", {x, y, class: kind}, said)
const arrow = (d, kind) => shape("path", {d, class: `arrow ${kind}`, "marker-end": "url(#arrowhead)"})
const box = ([x, y, width, height], kind, ...lines) => [
	shape("rect", {x, y, width, height, rx: 6, class: `box ${kind}`}),
	lines.map((said, n) =>
		text(x + width / 2, y + height / 2 + 5 + 19 * (n - (lines.length - 1) / 2), said, n ? "" : "title")
	)
]
function flowBars([x, y, width]) {
	const rows = facts.next[S.side].rows.slice(0, 4)
	return rows.map((r, n) => [
		text(x + 60, y + 26 * n + 20, plain(r.text).slice(0, 8), "end"),
		shape("rect", {
			...{x: x + 66, y: y + 26 * n + 7, height: 15, class: "share"},
			width: Math.max(1, ((width - 118) * r.probability) / rows[0].probability)
		}),
		text(x + width, y + 26 * n + 20, percent(r.probability), "end")
	])
}
export function drawFlow() {
	if (!facts.next) return
	const isWide = !narrow.matches
	const at = isWide ? WIDE : NARROW
	const [tokens, W_E, blocks, times] = at.boxes
	const m = model()
	const now = S.copy ? "untied" : headOf()
	const words = placed().map(t => plain(t.text).slice(0, 10))
	const [V, D] = [whole(m.vocab_size), m.n_embd]
	put(
		$("#drawing"),
		box(tokens, "", ...(isWide ? words.slice(-3) : [words.slice(-4).join("  ")])),
		box(W_E, "in", "W_E", `${V} × ${D}`, ...(isWide ? ["a row per token"] : [])),
		box(blocks, "", `${m.n_layer} blocks`, "attention, MLP"),
		box(times, "", "× matrix", "= logits"),
		at.arrows.map(path => arrow(path, "plain")),
		shape("path", {d: at.down, class: "arrow plain"}),
		["tied", "untied"].map(kind => arrow(at[kind], kind === now ? kind : "other")),
		now === "tied"
			? box(at.W_U, "none", "no W_U")
			: box(at.W_U, S.copy ? "copy" : "out", "W_U", `${D} × ${V}`),
		now === "tied" ? text(...at.same, isWide ? "the same matrix" : "the same", "tied") : [],
		flowBars(at.bars)
	)
	const [x, y, width] = at.switch
	for (const [name, value] of Object.entries({x, y, width})) $("#turn").setAttribute(name, value)
	const options = ["tied: W_E.T", "untied: W_U"].map(said => [
		said,
		said.startsWith(now),
		() => setTurn(said)
	])
	put("#turn", choice("The switch: the output matrix", options))
	$("#flow").setAttribute("viewBox", `0 0 ${at.size.join(" ")}`)
	$("#flow").setAttribute("class", S.copy ? "tied" : now)
	put("#flowsays", flowSays(m, now))
	$("#switch .code").dataset.turn = now
	for (const box of $$(".which")) drawChoice(box)
}
function flowSays(m, now) {
	const read = `W_E has a row of ${m.n_embd} numbers for each of ${whole(m.vocab_size)} tokens. `
	const numbers = `${whole(m.vocab_size * m.n_embd)} numbers`
	if (S.copy)
		return [
			el("b", `${m.name} has no W_U. `),
			"An untied copy of it starts with W_U = W_E.T: the same predictions, until training changes one: ",
			code(`tiedgpt train FILE --from ${m.name} --head untied --out DIR`)
		]
	if (now === "untied")
		return [
			el("b.untied", "Untied: "),
			read,
			`A second matrix, W_U, scores each token: ${numbers} of its own.`
		]
	const useless = " But this model learned with W_U: its predictions are now useless."
	return [
		...[el("b.tied", "Tied: "), read, `The same W_E, transposed, scores each token: ${numbers} serve twice.`],
		m.heads[0] === "tied" ? null : useless
	]
}
// Turn the switch: to a model with this head, to a model that can have it, or to an untied copy.
function setTurn(said) {
	const to = said.split(":")[0]
	const all = range(facts.models.length)
	const is = all.find(i => headOf(i) === to)
	const able = is ?? all.find(i => model(i).heads.includes(to))
	const heads = able == null ? S.heads : S.heads.with(able, to)
	const isNew = is == null && able != null
	set({side: able ?? S.side, copy: +(able == null), heads}, ...(isNew ? OF_TEXT : OF_SIDE))
	drawFlow()
}
const OF_SIDE = ["parts", "attention", "gradient"]
function drawChoice(box) {
	const choose = i => {
		set({side: i, copy: 0}, ...OF_SIDE)
		drawFlow()
	}
	const option = i => [model(i).name, i === S.side, () => choose(i)]
	put(box, facts.models.length > 1 ? choice("Model", each(option)) : [])
	$$("button", box).forEach((b, i) => b.classList.add(headOf(i)))
}
narrow.addEventListener("change", drawFlow)
