// The prompt's tokens, the likeliest next ones, and text that the models write.
import {bars, becomes, button, choice, nameOf, note, on, put, roving, textOf} from "./draw.js"
import {$, $$, el, fixed, percent, whole} from "./elements.js"
import {
	ask,
	facts,
	fail,
	forEachModel,
	headOf,
	model,
	OF_TEXT,
	ofModel,
	panel,
	promptFields,
	promptTokens,
	say,
	set,
	state
} from "./state.js"
import {drawFlow} from "./switch.js"

const idsOf = tokens => tokens.map(token => token.id)
// Each setting of sampling that the reader has changed, with its value.
const changedSettings = () => {
	const settings = facts.sampling.map(({name}) => [name, state[name]])
	return Object.fromEntries(settings.filter(([, value]) => value !== null))
}
// Without changed settings, each token is drawn with the probability that the model gives it.
const hasDefaultSampling = () => Object.keys(changedSettings()).length === 0
const samplingFields = i => ({...promptFields(i), ...changedSettings()})
function setPrompt(ids) {
	$("#prompt").blur() // a field with the focus would keep the text that was typed
	set({ids, place: null, token: null}, ...OF_TEXT)
}

panel(
	"next",
	() => forEachModel(samplingFields),
	predictions => {
		facts.next = predictions
		const [{text, tokens}] = predictions
		if (state.ids) showText(text)
		drawStrip(predictions[0])
		drawFlow()
		drawAllBars(predictions)
		const context = Math.min(...facts.models.map(m => m.n_ctx))
		put("#status", `${tokens.length} of ${context} tokens`)
		const isPartOfCharacter = token => /\\x[0-9a-f]{2}/.test(textOf(token))
		$("#bytes").hidden = !tokens.some(isPartOfCharacter)
		sayLikeliest(predictions)
	}
)
// Show the text of ids that were not typed. What the reader types meanwhile is left alone.
function showText(text) {
	state.text = text
	const isTyping = document.activeElement === $("#prompt")
	if (!isTyping) $("#prompt").value = text
}
function drawAllBars(predictions) {
	const rows = predictions.flatMap(prediction => prediction.rows)
	const most = Math.max(...rows.flatMap(row => [row.probability, row.drawn]))
	const sides = predictions.map((prediction, i) => ofModel(i, headSwitch(i), drawBars(prediction, i, most)))
	put("#bars", sides)
	for (const list of $$("#bars .list")) roving(list, $$(".row", list), 1)
	$("#barsnote").hidden = hasDefaultSampling()
}
function sayLikeliest(predictions) {
	const sentences = predictions.map(({rows}, i) => {
		const [first] = rows
		return `${model(i).name}: ${nameOf(first)}, ${percent(first.probability)}`
	})
	say(`Likeliest next token: ${sentences.join("; ")}`)
}
function headSwitch(i) {
	const {heads, name} = model(i)
	if (heads.length < 2) return null
	const choose = head => set({heads: state.heads.with(i, head), copy: 0}, ...OF_TEXT)
	const option = (head, text) => ({text, isOn: headOf(i) === head, go: () => choose(head)})
	const options = [option("tied", "W_E.T"), option("untied", "W_U")]
	return el("span.right", choice(`Output matrix of ${name}`, options))
}
function drawBars(prediction, i, most) {
	const rows = prediction.rows.map(row => drawBar(row, i, most))
	// A line before the first token that sampling drops.
	const firstDropped = prediction.rows.findIndex(row => !row.drawn)
	if (firstDropped >= 0) rows.splice(firstDropped, 0, el("div.cut", keptText(prediction, i)))
	const list = el("div.list", {role: "group", label: `Likeliest next tokens of ${model(i).name}`}, rows)
	const drawButton = button("Draw one", () => drawOneToken(i), {key: `draw${i}`})
	return [list, el("p", drawButton)]
}
function drawBar(row, i, most) {
	const {id, logit, probability} = row
	const text = nameOf(row)
	let drawn = probability
	let chance = percent(probability)
	if (!hasDefaultSampling()) {
		drawn = row.drawn
		chance = becomes(probability, drawn)
	}
	// The space is for the button's name, "be 7.3 %", which screen readers say.
	const cells = [el("span.t", text), " ", bars(probability, drawn, most), el("span.p", chance)]
	return button(cells, () => setPrompt([...idsOf(promptTokens()), id]), {
		class: row.drawn ? "row" : "row out",
		key: `bar${i}.${id}`,
		title: `token ${id}, logit ${fixed(logit)}: add it to the text`
	})
}
function keptText({kept, kept_probability}, i) {
	const dropped = model(i).vocab_size - kept
	return `${whole(kept)} kept, ${percent(kept_probability)} of the probability; ${whole(dropped)} dropped`
}
function drawStrip({tokens, place}) {
	const cells = tokens.map((token, i) => {
		const isLast = i === tokens.length - 1
		const choose = () => set({place: isLast ? null : i}, ...OF_TEXT)
		const attributes = {class: "tok", key: `tok${i}`, pressed: i === place, title: `token ${token.id}`}
		return button(nameOf(token), choose, attributes)
	})
	put("#strip", cells)
	roving($("#strip"), cells, 1, place)
}

const writingFields = (i, n) => ({...samplingFields(i), n, seed: state.seed})
async function drawOneToken(i) {
	try {
		const {value} = await ask("generate", writingFields(i, 1)).next()
		if (value.id == null) return // the text has ended
		state.seed++ // so that the next token is drawn with other random numbers
		$("#seed").value = state.seed
		setPrompt([...idsOf(promptTokens()), value.id])
	} catch (error) {
		fail(error)
	}
}
let writing = null // while texts are written, the controller that stops them
on("#write", "click", async () => {
	if (writing) return writing.abort()
	writing = new AbortController()
	const idleText = $("#write").textContent
	put("#write", "Stop")
	await writeTexts(writing.signal)
	writing = null
	put("#write", idleText)
})
async function writeTexts(signal) {
	const prompt = promptTokens()
	$("#writtennote").hidden = false
	const texts = forEachModel(i => newText(i, prompt))
	put(
		"#written",
		texts.map((text, i) => ofModel(i, null, text.page, text.note))
	)
	const write = async (text, i) => {
		const words = ask("generate", writingFields(i, 40), signal) // at most 40 tokens
		for await (const word of words) addWord(text, word, prompt)
	}
	await Promise.all(texts.map(write)).catch(fail) // the server writes one text after the other
	texts.forEach(finishText)
	const counts = texts.map(text => text.tokens.length)
	say(`Wrote ${counts.join(" and ")} tokens`)
	document.body.dataset.written = counts // for tests
}
// A text that grows: its tokens, the box that shows it, and a note on how it ended.
function newText(i, prompt) {
	const start = el("span.given", prompt.map(textOf).join(""))
	const page = el("p.page", {tabIndex: 0, role: "group", label: `Text by ${model(i).name}`}, start)
	return {tokens: [], page, note: note("writing …"), isComplete: false}
}
// Add an answer to "generate": a token, or at last the reason why there are no more.
function addWord(text, word, prompt) {
	if (word.end) {
		const bits = word.bits_per_token.toFixed(2)
		text.isComplete = true
		put(text.note, `${text.tokens.length} tokens, to the ${word.end}; mean surprisal ${bits} bits`)
		return
	}
	const before = idsOf([...prompt, ...text.tokens]) // the text without this word
	text.tokens.push(word)
	const goBack = () => setPrompt(before)
	const attributes = {
		role: "button",
		tabIndex: -1,
		// how thick the line below the word is, in steps of .8px: 1 at 0 bits, 9 from 11 bits on
		vars: {"--bits": Math.min(9, 1 + 0.7 * word.bits)},
		title: `${percent(word.probability)}, rank ${whole(word.rank)}. Go back to the text before it.`,
		label: `${nameOf(word)}, ${percent(word.probability)}`,
		onclick: () => {
			const isSelecting = String(getSelection()) !== "" // the reader selects words, to copy them
			if (!isSelecting) goBack()
		},
		onkeydown: e => {
			if (e.key !== "Enter" && e.key !== " ") return
			e.preventDefault()
			goBack()
		}
	}
	text.page.append(el(word.token === "\n" ? "span.w.nl" : "span.w", attributes, textOf(word)))
}
function finishText(text) {
	if (!text.isComplete) put(text.note, `${text.tokens.length} tokens; stopped`)
	const words = $$(".w", text.page)
	if (!words.length) return
	text.page.removeAttribute("tabindex") // Tab reaches the first word in its place
	roving(text.page, words, 1)
}

on("#prompt", "input", e => {
	set({text: e.target.value, ids: null, place: null, token: null}, ...OF_TEXT)
})

// --- the settings of sampling, one control for each field of sampling.Sampling

export function drawControls() {
	const seed = {name: "seed", default: 1, min: 0, max: 2 ** 32, whole: true, help: "of the random numbers"}
	put("#controls", [...facts.sampling, seed].map(control))
}
function control({name, help, min, max, whole, ...setting}) {
	const isSwitch = typeof setting.default === "boolean"
	const shown = isSwitch
		? {type: "checkbox", checked: state[name] ?? false}
		: {type: "number", min, max, step: whole ? 1 : 0.05, value: state[name] ?? ""}
	const placeholder = setting.default ?? "off"
	return el("label", {title: help}, name.replaceAll("_", " "), el("input", {id: name, placeholder, ...shown}))
}
// An empty control has the default.
function controlValue({type, checked, value, id}) {
	if (type === "checkbox") return checked || null
	if (value === "") return id === "seed" ? 1 : null
	return Number(value)
}
on("#controls", "input", e => set({[e.target.id]: controlValue(e.target)}, "next"))
