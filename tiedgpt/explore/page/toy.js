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
import {answer, beginning, changed, facts, fail, panel, S, set} from "./state.js"

panel(
	"toy",
	() => ({W_E: S.W, P: S.P}),
	({ways}) => {
		const {words} = facts.toy
		const D = S.W[0].length
		const dims = range(D).map(j => `dim\u00a0${j}`)
		const box = $("#toyin")
		const isTyping = box.contains(document.activeElement)
		const titles = [`W_E, ${D} numbers for each word`, "The text: what follows each word"]
		if (!isTyping) put(box, inputs("W", titles[0], dims), inputs("P", titles[1], words))
		put("#dims", D === 2 ? "Use 3 dimensions" : "Use 2 dimensions")
		const table = (rows, M, caption, more) => heat(rows, words, M, {digits: 2, caption, ...more})
		const way = (name, kind, title, ...below) => {
			const {kl, scores, probabilities} = ways[name]
			const [a, b] = [scores[0][1], scores[1][0]]
			const equal = Math.abs(a - b) < 1e-6 ? "=" : "≠"
			const says = [
				el("b", `${fixed(kl)} nats from the text.`),
				` New York ${fixed(a)} ${equal} York New ${fixed(b)}.`
			]
			const own = table(words, probabilities, `${title}: predictions`, {max: 1.05, of: "toy"})
			return side(kind, el("h3", mark(), title), own, note(says), below)
		}
		put(
			$("#toyout"),
			way("tied", "tied", "Tied", note(code("softmax(W_E W_Eᵀ)"))),
			way("untied", "untied", "Untied, W_U solved", table(dims, ways.untied.W_U, "W_U, solved")),
			way("mlp0", "tied", "Tied, with an MLP", note(code("softmax((W_E + MLP(W_E)) W_Eᵀ)")))
		)
		const misses = `The best W_U of all misses the text by ${fixed(ways.fitted.kl)} nats`
		const few = `${misses}: ${D} columns of W_E are too few.`
		const fits = "With this W_E, a W_U fits the text, and W_E W_Eᵀ does not."
		put("#toynote", ways.untied.kl > 0.004 ? few : fits)
	}
)
function inputs(name, title, titles) {
	const {words} = facts.toy
	const input = (v, i, j) =>
		el("input", {
			...{type: "number", step: name === "W" ? 0.1 : 0.05, min: name === "W" ? -100 : 0.01, max: 100},
			...{value: +v.toFixed(3), key: name + i + j, label: `${title}: ${words[i]}, ${titles[j]}`},
			oninput: e => {
				if (e.target.value === "") return
				S[name][i][j] = +e.target.value
				changed(name, "toy")
			}
		})
	const cells = (row, i) => row.map((v, j) => el("td", input(v, i, j)))
	const rows = S[name].map((row, i) => line(words[i], cells(row, i)))
	const top = [corner(), titles.map(text => column(text))]
	return side("text", el("h3", title), grid("heat.toy", title, top, rows))
}
on("#dims", "click", () => {
	const other = (row, i) => (row.length === 2 ? [...row, [0.6, -0.4, 0.2][i] ?? 0] : row.slice(0, 2))
	set({W: S.W.map(other)}, "toy")
})
on("#solveW", "click", async () => {
	const asked = {W_E: S.W, P: S.P, solve_W_E: true}
	const found = await answer("toy", asked).catch(error => fail(error, $("#toy .warn")))
	if (found) set({W: found.W_E.map(row => row.map(v => +v.toFixed(3)))}, "toy")
})
on("#toyreset", "click", () => set(beginning("W", "P"), "toy"))
