// The direct path: its scores, why they are symmetric, what repairs that, near tokens, a better matrix.
import {
	$,
	$$,
	bar,
	choice,
	code,
	column,
	el,
	fixed,
	floats,
	grid,
	heat,
	highest,
	line,
	mark,
	note,
	percent,
	plain,
	points,
	put,
	side,
	whole
} from "./draw.js"
import {
	answers,
	common,
	each,
	facts,
	fail,
	headOf,
	model,
	named,
	ofModel,
	own,
	panel,
	S,
	set,
	stoppable
} from "./state.js"

const PATHS = {
	raw: ["W_E, W_U", "x = W_E[a]"],
	normed: ["with ln_f", "x = ln_f(W_E[a])"],
	mlp0: ["with the first MLP", "x = ln_f(W_E[a] + MLP_0(W_E[a]))"],
	model: ["whole model", "x = the whole model, for the text a"]
}
const measured = {} // "head,head" -> the answers to `symmetry`
panel(
	"path",
	() => each(i => ({...common(i), path: S.path})),
	async found => {
		drawPaths()
		const [{tokens, text}] = found
		const names = tokens.map(t => t.text)
		const block = (kind, title, M, options) => {
			const own = heat(names, names, M, {point: (a, b) => drawPair(found, a, b), ...options})
			const turned = M.map((row, a) => row.map((v, b) => v - M[b][a]))
			const mini = heat(names, names, turned, {caption: "", show: () => "", max: highest(M)})
			const below = el("div.mini.note", el("div", {"aria-hidden": "true"}, mini), "A − Aᵀ")
			return side(kind, el("h3", title), own, below)
		}
		const caption = i => `${model(i).name}: scores of the column's token after the row's`
		const often = "How often the column's token follows the row's in the text, in percent"
		const title = [mark(), "In the text, %"]
		put(
			$("#matrices"),
			found.map((s, i) => block(headOf(i), named(i), s.A, {caption: caption(i)})),
			text
				? block("text", title, text.percent, {digits: 0, caption: often})
				: note("To compare with a text, start with ", code("--corpus FILE"), ".")
		)
		drawPair(found, ...commonest(text, names))
		$("#solvedbox").hidden = !facts.corpus
		put("#corpus", facts.corpus)
		drawNear(await answers("nearest", common))
		drawMeasured()
	}
)
// The commonest pair of words in the text, or the last two tokens.
function commonest(text, names) {
	const isWord = n => /\p{L}/u.test(names[n])
	const pairs = names.flatMap((_, a) => names.map((_, b) => [a, b]))
	const often = ([a, b]) => (a !== b && isWord(a) && isWord(b) && text?.percent[a][b]) || 0
	const best = pairs.reduce((one, other) => (often(other) > often(one) ? other : one))
	return often(best) ? best : pairs.at(-2 % pairs.length)
}
function drawPaths() {
	const names = Object.keys(PATHS).filter(name => facts.models.some(m => m.paths.includes(name)))
	const option = name => [PATHS[name][0], name === S.path, () => set({path: name}, "path")]
	const formula = code(`A[a, b] = x · W_U[:, b],   ${PATHS[S.path][1]}`)
	put("#paths", choice("Path from a token to the scores", names.map(option)), formula)
}
// The cell (a, b), its mirror image, and for the raw path the two products that they are.
function drawPair(found, a, b) {
	for (const cell of $$("#matrices td[data-i]")) {
		const [i, j] = [+cell.dataset.i, +cell.dataset.j]
		cell.classList.toggle("on", a === i && b === j)
		cell.classList.toggle("mirror", a === j && b === i && i !== j)
	}
	const [{tokens, text}] = found
	const [x, y] = [a, b].map(n => plain(tokens[n].text))
	const equal = (p, q) => (Math.abs(p - q) < 1e-4 ? "=" : "≠")
	const says = ({A}, i) =>
		`${model(i).name}: ${fixed(A[a][b])} ${equal(A[a][b], A[b][a])} ${fixed(A[b][a])}    `
	put(
		$("#mirror"),
		...[el("b", `“${x}” then “${y}”`), "  against  ", el("b", `“${y}” then “${x}”`), "\n", found.map(says)],
		text && `in the text: ${whole(text.counts[a][b])} times, ${whole(text.counts[b][a])} times`
	)
	const isRaw = S.path === "raw"
	$("#otherpath").hidden = isRaw
	put("#product", isRaw ? found.map((s, i) => products(s, i, a, b, x, y)) : [])
}
function products(s, i, a, b, x, y) {
	const D = model(i).n_embd
	const kind = headOf(i)
	const row = (matrix, n) => [...floats(s[matrix]).subarray(n * D, (n + 1) * D)]
	const strip = (title, values) => [el("span", title), points([values], highest(values), kind)]
	const way = (from, to, p, q) => {
		const [u, v] = [row("W_E", from), row("W_U", to)]
		const both = u.map((value, n) => value * v[n])
		const label = kind === "tied" ? `W_E[${q}]` : `W_U[:, ${q}]`
		const start = [0, 1].map(n => `${fixed(u[n])} × ${fixed(v[n])}`).join(" + ")
		const sum = fixed(s.A[from][to])
		return el(
			"div.strips",
			{role: "img", label: `${p} then ${q}: ${sum}`},
			[strip(`W_E[${p}]`, u), strip(label, v), strip("product", both)],
			el("p", `${start} + … ${D} products = `, el("b", sum))
		)
	}
	const same = "The same two rows in the other order. Each product a · b = b · a, so the sums are equal."
	const other = "Two other rows: W_E[b] and W_U[:, a]. Nothing makes the sums equal."
	return ofModel(i, null, way(a, b, x, y), way(b, a, y, x), note(kind === "tied" ? same : other))
}
async function drawMeasured() {
	const key = String(S.heads)
	const box = $("#repair")
	try {
		const progress = part => put(box, note(`measuring … ${percent(part)}`))
		measured[key] ??= await answers("symmetry", own, progress)
	} catch (error) {
		return fail(error, $("#path .warn"))
	}
	if (key !== String(S.heads)) return
	const found = measured[key]
	const [{text}] = found
	const itself = `In the text, ${percent(text)} of frequent tokens mostly follow themselves.`
	const cells = ({paths}, i, name) => {
		if (!paths[name]) return [el("td"), el("td")]
		const {asymmetry, self_prediction: itself} = paths[name]
		const track = el("span.track", bar(Math.min(1, asymmetry / 1.5)))
		return [el(`td.${headOf(i)}`, track, el("b", fixed(asymmetry))), el("td", percent(itself))]
	}
	const titles = each(i => [column(model(i).name, ": asymmetry"), column("predict themselves")])
	const rows = Object.keys(PATHS)
		.filter(name => found.some(s => s.paths[name]))
		.map(name => {
			const row = line(
				PATHS[name][0],
				found.map((s, i) => cells(s, i, name))
			)
			row.classList.toggle("now", name === S.path)
			return row
		})
	const table = grid("sum", "How symmetric each path is", [column("path"), titles], rows)
	put(box, table, found.map(repaired), text == null ? null : note(itself))
}
function repaired({paths: {raw, mlp0}, measured: n}, i) {
	if (!mlp0) return null
	const isRepaired = mlp0.asymmetry > 0.7 && mlp0.self_prediction < raw.self_prediction / 2
	const verdict = isRepaired ? "Yes, by the first MLP." : "Only in part by the first MLP."
	const said = raw.asymmetry > 0.01 ? "There is no symmetry to repair." : verdict
	const of = n < model(i).vocab_size ? ` Measured on ${whole(n)} tokens, drawn at random.` : ""
	return note(el("b", `${model(i).name}. ${said}`), of)
}
function drawNear(found) {
	const list = (s, i, name) => [
		el("h3", mark(), el("span.name", `${model(i).name}: ${name}`)),
		note(s[name].map(r => [code(plain(r.text)), ` ${fixed(r.cosine)}\u2003`]))
	]
	const lists = (s, i) => (headOf(i) === "tied" ? ["W_E"] : ["W_E", "W_U"]).map(name => list(s, i, name))
	put("#nearto", plain(found[0].token.text))
	put(
		"#near",
		found.map((s, i) => side(headOf(i), lists(s, i)))
	)
}
const SOLVED = {
	scale: "scale: gone with one factor for all logits",
	head: "head: gone with the best W_U",
	rank: "rank: left with the best W_U"
}
stoppable("#solve", async signal => {
	const progress = part => put("#solve", `Cancel (${percent(part)} done)`)
	progress(0)
	try {
		const found = await answers("solved", own, progress, signal)
		const cell = name => s => el("td", s.missing ? fixed(s.missing[name]) : "–")
		const rows = Object.entries(SOLVED).map(([name, text]) => line(text, found.map(cell(name))))
		const top = [column("nats per token"), facts.models.map(m => column(m.name))]
		$("#solvednote").hidden = false
		put("#solved", grid("sum", "What the direct path misses", top, rows))
	} catch (error) {
		put("#solved", signal.aborted ? note("Cancelled.") : el("p.note.warn", error.message))
	}
})
