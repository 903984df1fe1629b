// Three words: a model to change by hand.
import {
	$,
	code,
	column,
	corner,
	el,
	fixed,
	grid,
	heat,
	line,
	mark,
	note,
	on,
	put,
	range,
	side
} from "./draw.js"
import {answer, changed, defaultWords, facts, fail, panel, set, state} from "./state.js"

const THIRD_DIMENSION = [0.6, -0.4, 0.2] // of each word, at first

panel(
	"toy",
	() => ({W_E: state.W, P: state.P}),
	({ways}) => {
		const D = state.W[0].length
		const dims = range(D).map(j => `dim\u00a0${j}`)
		const isTyping = $("#toyin").contains(document.activeElement)
		if (!isTyping) drawInputs(dims)
		put("#dims", D === 2 ? "Use 3 dimensions" : "Use 2 dimensions")
		const {tied, untied, mlp0} = ways
		put(
			"#toyout",
			drawWay(tied, "tied", "Tied", note(code("softmax(W_E W_Eᵀ)"))),
			drawWay(untied, "untied", "Untied, W_U solved", toyTable(dims, untied.W_U, "W_U, solved")),
			drawWay(mlp0, "tied", "Tied, with an MLP", note(code("softmax((W_E + MLP(W_E)) W_Eᵀ)")))
		)
		const misses = `The best W_U of all misses the text by ${fixed(ways.fitted.kl)} nats`
		const few = `${misses}: ${D} columns of W_E are too few.`
		const fits = "With this W_E, a W_U fits the text, and W_E W_Eᵀ does not."
		put("#toynote", untied.kl > 0.004 ? few : fits)
	}
)
const toyTable = (rows, M, caption, options) =>
	heat(rows, facts.toy.words, M, {digits: 2, caption, ...options})
function drawWay({kl, scores, probabilities}, kind, title, below) {
	const newYork = scores[0][1]
	const yorkNew = scores[1][0]
	const sign = Math.abs(newYork - yorkNew) < 1e-6 ? "=" : "≠"
	const options = {max: 1.05, kind: "toy"}
	return side(
		kind,
		el("h3", mark(), title),
		toyTable(facts.toy.words, probabilities, `${title}: predictions`, options),
		note(
			el("b", `${fixed(kl)} nats from the text.`),
			` New York ${fixed(newYork)} ${sign} York New ${fixed(yorkNew)}.`
		),
		below
	)
}
function drawInputs(dims) {
	const limits = {min: -100, max: 100, step: 0.1}
	const shareLimits = {min: 0.01, max: 100, step: 0.05}
	put(
		"#toyin",
		inputTable("W", `W_E, ${dims.length} numbers for each word`, dims, limits),
		inputTable("P", "The text: what follows each word", facts.toy.words, shareLimits)
	)
}
function inputTable(name, title, titles, limits) {
	const {words} = facts.toy
	const input = (v, i, j) =>
		el("input", {
			type: "number",
			min: limits.min,
			max: limits.max,
			step: limits.step,
			value: Number(v.toFixed(3)),
			key: name + i + j,
			label: `${title}: ${words[i]}, ${titles[j]}`,
			oninput: e => {
				if (e.target.value === "") return
				state[name][i][j] = Number(e.target.value)
				changed(name, "toy")
			}
		})
	const cells = (row, i) => row.map((v, j) => el("td", input(v, i, j)))
	const rows = state[name].map((row, i) => line(words[i], cells(row, i)))
	const top = [corner(), titles.map(text => column(text))]
	return side("text", el("h3", title), grid("heat.toy", title, top, rows))
}
on("#dims", "click", () => {
	const otherRow = (row, i) => (row.length === 2 ? [...row, THIRD_DIMENSION[i] ?? 0] : row.slice(0, 2))
	set({W: state.W.map(otherRow)}, "toy")
})
on("#solveW", "click", async () => {
	const fields = {W_E: state.W, P: state.P, solve_W_E: true}
	const solution = await answer("toy", fields).catch(error => fail(error, $("#toy .warn")))
	if (solution) set({W: solution.W_E.map(row => row.map(v => Number(v.toFixed(3))))}, "toy")
})
on("#toyreset", "click", () => set(defaultWords(), "toy"))
