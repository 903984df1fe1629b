// The direct path: its scores, why they are symmetric, what repairs that, near tokens, a better matrix.
import {
	bar,
	choice,
	code,
	column,
	floats,
	grid,
	heat,
	highest,
	line,
	mark,
	nameOf,
	note,
	on,
	points,
	put,
	side,
	textOf
} from "./draw.js"
import {$, $$, el, fixed, percent, whole} from "./elements.js"
import {
	answers,
	facts,
	fail,
	forEachModel,
	headOf,
	markedName,
	model,
	modelFields,
	ofModel,
	panel,
	promptFields,
	set,
	state
} from "./state.js"

const PATHS = {
	raw: {title: "W_E, W_U", formula: "x = W_E[a]"},
	normed: {title: "with ln_f", formula: "x = ln_f(W_E[a])"},
	mlp0: {title: "with the first MLP", formula: "x = ln_f(W_E[a] + MLP_0(W_E[a]))"},
	model: {title: "whole model", formula: "x = the whole model, for the text a"}
}

// --- the scores of the pairs of the prompt's tokens, one answer for each model

panel(
	"path",
	() => forEachModel(i => ({...promptFields(i), path: state.path})),
	async scores => {
		drawPaths()
		drawMatrices(scores)
		const {a, b} = commonestPair(scores[0])
		drawPair(scores, a, b)
		$("#solvedbox").hidden = !facts.corpus
		put("#corpus", facts.corpus)
		drawNear(await answers("nearest", promptFields))
		drawSymmetry()
	}
)
function drawPaths() {
	const names = Object.keys(PATHS).filter(name => facts.models.some(m => m.paths.includes(name)))
	const options = names.map(name => ({
		text: PATHS[name].title,
		isOn: name === state.path,
		go: () => set({path: name}, "path")
	}))
	const formula = code(`A[a, b] = x · W_U[:, b],   ${PATHS[state.path].formula}`)
	put("#paths", choice("Path from a token to the scores", options), formula)
}
function drawMatrices(scores) {
	const [{tokens, text}] = scores
	const names = tokens.map(textOf)
	const point = (a, b) => drawPair(scores, a, b)
	const matrices = scores.map(({A}, i) => {
		const caption = `${model(i).name}: scores of the column's token after the row's`
		return drawMatrix(headOf(i), markedName(i), names, A, {point, caption})
	})
	put("#matrices", matrices, drawTextMatrix(text, names, point))
}
function drawTextMatrix(text, names, point) {
	if (!text) return note("To compare with a text, start with ", code("--corpus FILE"), ".")
	const caption = "How often the column's token follows the row's in the text, in percent"
	const title = [mark(), "In the text, %"]
	return drawMatrix("text", title, names, text.percent, {point, caption, digits: 0})
}
// A matrix, and below it a small picture of A - A^T, which is empty if the matrix is symmetric.
function drawMatrix(kind, title, names, M, options) {
	const differences = M.map((row, a) => row.map((v, b) => v - M[b][a]))
	const picture = heat(names, names, differences, {caption: "", show: () => "", max: highest(M)})
	const below = el("div.mini.note", el("div", {"aria-hidden": "true"}, picture), "A − Aᵀ")
	return side(kind, el("h3", title), heat(names, names, M, options), below)
}
// The pair of different words that is commonest in the text, or the last two tokens.
function commonestPair({tokens, text}) {
	const isWord = tokens.map(token => /\p{L}/u.test(textOf(token)))
	// 0 without a text, for the same word twice, and for punctuation
	const share = (a, b) => {
		const areDifferentWords = a !== b && isWord[a] && isWord[b]
		return text && areDifferentWords ? text.percent[a][b] : 0
	}
	const last = tokens.length - 1
	let commonest = {a: last, b: Math.max(0, last - 1)}
	let largestShare = 0
	for (const a of tokens.keys()) {
		for (const b of tokens.keys()) {
			if (share(a, b) <= largestShare) continue
			largestShare = share(a, b)
			commonest = {a, b}
		}
	}
	return commonest
}
// Compare the cells (a, b) and (b, a). For the raw path, show the product of vectors that each is.
function drawPair(scores, a, b) {
	for (const cell of $$("#matrices td[data-i]")) {
		const i = Number(cell.dataset.i)
		const j = Number(cell.dataset.j)
		cell.classList.toggle("on", a === i && b === j)
		cell.classList.toggle("mirror", a === j && b === i && i !== j)
	}
	const [{tokens, text}] = scores
	const first = nameOf(tokens[a])
	const second = nameOf(tokens[b])
	put(
		"#mirror",
		el("b", `“${first}” then “${second}”`),
		"  against  ",
		el("b", `“${second}” then “${first}”`),
		"\n",
		scores.map(({A}, i) => comparedScores(A, i, a, b)),
		text && `in the text: ${whole(text.counts[a][b])} times, ${whole(text.counts[b][a])} times`
	)
	const isRaw = state.path === "raw"
	$("#otherpath").hidden = isRaw
	put("#product", isRaw ? scores.map((answer, i) => drawProducts(answer, i, a, b)) : [])
}
function comparedScores(A, i, a, b) {
	const areEqual = Math.abs(A[a][b] - A[b][a]) < 1e-4 // but for rounding
	const sign = areEqual ? "=" : "≠"
	return `${model(i).name}: ${fixed(A[a][b])} ${sign} ${fixed(A[b][a])}    `
}
function drawProducts(answer, i, a, b) {
	const same = "The same two rows in the other order. Each product a · b = b · a, so the sums are equal."
	const other = "Two other rows: W_E[b] and W_U[:, a]. Nothing makes the sums equal."
	const isTied = headOf(i) === "tied"
	return ofModel(
		i,
		null,
		drawProduct(answer, i, a, b),
		drawProduct(answer, i, b, a),
		note(isTied ? same : other)
	)
}
// The score of the token `to` after the token `from`: two rows, and the products of their numbers.
function drawProduct({tokens, A, W_E, W_U}, i, from, to) {
	const D = model(i).n_embd
	const kind = headOf(i)
	const read = rowOf(W_E, from, D)
	const scored = rowOf(W_U, to, D)
	const products = read.map((value, n) => value * scored[n])
	const strip = (title, values) => [el("span", title), points([values], highest(values), kind)]
	const first = nameOf(tokens[from])
	const second = nameOf(tokens[to])
	const firstTerms = [0, 1].map(n => `${fixed(read[n])} × ${fixed(scored[n])}`)
	const sum = fixed(A[from][to])
	return el(
		"div.strips",
		{role: "img", label: `${first} then ${second}: ${sum}`},
		strip(`W_E[${first}]`, read),
		strip(kind === "tied" ? `W_E[${second}]` : `W_U[:, ${second}]`, scored),
		strip("product", products),
		el("p", `${firstTerms.join(" + ")} + … ${D} products = `, el("b", sum))
	)
}
const rowOf = (matrix, n, D) => [...floats(matrix).subarray(n * D, (n + 1) * D)]

// --- how symmetric each path is

const symmetries = {} // "head,head" -> the answers for the models with these heads
async function drawSymmetry() {
	const key = String(state.heads)
	try {
		if (!symmetries[key]) put("#repair", note("measuring …"))
		symmetries[key] ??= await answers("symmetry", modelFields)
	} catch (error) {
		fail(error, $("#path .warn"))
		return
	}
	// The reader has changed a head meanwhile. The answer for the new heads is drawn when it comes.
	const haveHeadsChanged = key !== String(state.heads)
	if (haveHeadsChanged) return
	const measured = symmetries[key]
	const [{text}] = measured
	const itself = `In the text, ${percent(text)} of frequent tokens mostly follow themselves.`
	put("#repair", symmetryTable(measured), measured.map(repairVerdict), text == null ? null : note(itself))
}
function symmetryTable(measured) {
	const titles = forEachModel(i => [column(model(i).name, ": asymmetry"), column("predict themselves")])
	const names = Object.keys(PATHS).filter(name => measured.some(({paths}) => paths[name]))
	const rows = names.map(name => {
		const cells = measured.map(({paths}, i) => symmetryCells(paths[name], i))
		const row = line(PATHS[name].title, cells)
		row.classList.toggle("now", name === state.path)
		return row
	})
	return grid("summary", "How symmetric each path is", [column("path"), titles], rows)
}
function symmetryCells(path, i) {
	if (!path) return [el("td"), el("td")] // this model does not have the path
	// Two unrelated halves have an asymmetry of 1.41, nearly the whole bar. The highest is 2.
	const track = el("span.track", bar(Math.min(1, path.asymmetry / 1.5)))
	return [
		el(`td.${headOf(i)}`, track, el("b", fixed(path.asymmetry))),
		el("td", percent(path.self_prediction))
	]
}
function repairVerdict({paths: {raw, mlp0}, measured}, i) {
	if (!mlp0) return null
	// A symmetric matrix has 0, two unrelated halves have 1.41. From half of that on it is asymmetric.
	const isAsymmetric = mlp0.asymmetry > 0.7
	const predictsItselfLess = mlp0.self_prediction < raw.self_prediction / 2
	let verdict = "Only in part by the first MLP."
	const isUntied = raw.asymmetry > 0.01 // more than rounding
	if (isUntied) verdict = "There is no symmetry to repair."
	else if (isAsymmetric && predictsItselfLess) verdict = "Yes, by the first MLP."
	const isSample = measured < model(i).vocab_size
	const sample = isSample ? ` Measured on ${whole(measured)} tokens, drawn at random.` : ""
	return note(el("b", `${model(i).name}. ${verdict}`), sample)
}

// --- near tokens

function drawNear(near) {
	put("#nearto", nameOf(near[0].token))
	put(
		"#near",
		near.map((answer, i) => {
			const names = headOf(i) === "tied" ? ["W_E"] : ["W_E", "W_U"]
			const lists = names.map(name => nearList(answer[name], `${model(i).name}: ${name}`))
			return side(headOf(i), lists)
		})
	)
}
function nearList(tokens, title) {
	const texts = tokens.map(token => [code(nameOf(token)), ` ${fixed(token.cosine)}\u2003`])
	return [el("h3", mark(), el("span.name", title)), note(texts)]
}

// --- a better output matrix

const MISSING = {
	scale: "scale: gone with one factor for all logits",
	head: "head: gone with the best W_U",
	rank: "rank: left with the best W_U"
}
on("#solve", "click", async () => {
	$("#solve").disabled = true
	put("#solved", note("solving …"))
	try {
		const solved = await answers("solve", modelFields)
		$("#solvednote").hidden = false
		put("#solved", missingTable(solved))
	} catch (error) {
		put("#solved", el("p.note.warn", error.message))
	}
	$("#solve").disabled = false
})
function missingTable(solved) {
	const cell = (missing, name) => el("td", missing ? fixed(missing[name]) : "–")
	const rows = Object.entries(MISSING).map(([name, title]) =>
		line(
			title,
			solved.map(({missing}) => cell(missing, name))
		)
	)
	const top = [column("nats per token"), facts.models.map(m => column(m.name))]
	return grid("summary", "What the direct path misses", top, rows)
}
