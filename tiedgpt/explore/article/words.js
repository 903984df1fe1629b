// The reader's word: what the tables and the paths list after it.

import {$, $$, percent, whole} from "../page/elements.js"
import {lens, PATHS, softmax, topK} from "./gpt2.js"
import {decode, encode, tokenText} from "./tokenizer.js"

const SHOWN = 3 // tokens in a list
const TENTHS_BELOW = 0.01 // of a share: on a phone there is no room for more digits

export function tokensOf(text, tokenizer) {
	// -> ids. A word is read with a space before it, as inside a sentence. But if the word has fewer tokens
	// without the space, it is read so: the name of a speaker, for example, begins a line.
	const inside = encode(` ${text}`, tokenizer)
	const alone = encode(text, tokenizer)
	return alone.length < inside.length ? alone : inside
}

export function shownToken(id, tokenizer) {
	// -> text for a reader: a piece that is glued to the word before has a hyphen
	const text = tokenText(id, tokenizer)
	if (text.includes("\ufffd")) return "part of a character"
	if (text === "\n") return "line break"
	if (/^\p{Cc}/u.test(text)) return "control character"
	if (/^\p{Ll}/u.test(text)) return `-${text}`
	return text.replace(/^ /, "") || "space"
}

function logitsAfter(ids, path, {params, config}) {
	// -> [V]: a path reads the last token alone
	const run = {config, tied: config.tie_word_embeddings}
	return PATHS[path](ids.at(-1), params, run)
}

function showList(list, ids, page) {
	// data-words is HEAD.PATH
	const [head, path] = list.dataset.words.split(".")
	const logits = logitsAfter(ids, path, page.models[head])
	const hasScale = path !== "raw" // without ln_f the scale of the logits means nothing
	showHighest(list, logits, hasScale, ids.at(-1), page)
}

export function showStreams(ids, page) {
	// What each model would write after the table, the first layer, the second, ...: it reads as many of the last
	// tokens as it can.
	for (const head of ["tied", "untied"]) {
		const {params, config} = page.models[head]
		const n_ctx = params.wpe.weight.length
		const stops = lens(ids.slice(-n_ctx), params, {config, tied: config.tie_word_embeddings}) // [layers + 1, V]
		$$(`.stream.${head} [data-words]`).forEach((list, stop) => {
			showHighest(list, stops[stop], true, ids.at(-1), page)
			list.prepend(list.firstElementChild) // An element that is put in anew moves anew.
		})
		// The last row is the whole model's, which is a stop of part 5 too.
		for (const list of $$(`.stops [data-words="${head}.model"]`)) {
			showHighest(list, stops.at(-1), true, ids.at(-1), page)
		}
	}
}

function showHighest(list, logits, hasScale, last, {models, figures}) {
	// the tokens with the highest scores after the token `last`
	const probabilities = softmax(logits)
	const followers = figures.tokens.followers[last]
	topK(logits, SHOWN).forEach((id, place) => {
		const name = shownToken(id, models.tokenizer)
		const probability = hasScale ? probabilities[id] : null
		showItem(list.children[place], name, probability, followers.includes(id))
	})
}

function showItem(item, name, probability, follows) {
	// Its elements stand in the page (scripts/page/pictures.py: word_items). A browser computes no styles for
	// new texts in them.
	$("b", item).textContent = name
	$(".follows", item).textContent = follows ? "✓" : ""
	if (probability === null) return
	$("span", item).textContent = percent(probability, TENTHS_BELOW)
	$("rect", item).setAttribute("width", (100 * probability).toFixed(1))
}

export function showLists(ids, lists, page) {
	for (const list of lists) showList(list, ids, page)
}

export function showWord(ids, page) {
	// the texts about the word: its name, how it is read, what follows it in the text
	const name = shownToken(ids.at(-1), page.models.tokenizer)
	for (const node of $$(".own")) node.textContent = name
	sayReading(readingOf(ids, page.models.tokenizer))
	$("#followers").textContent = followersOf(ids.at(-1), page)
}

export function sayReading(text) {
	// beside each field
	for (const node of $$(".reading")) node.textContent = text
}

function readingOf(ids, tokenizer) {
	const names = ids.map(id => `“${shownToken(id, tokenizer)}”`)
	if (ids.length === 1) return `${names[0]} is one token.`
	const shown = names.length > 6 ? ["…", ...names.slice(-5)] : names
	const tokens = `These are ${ids.length} tokens: ${shown.join(" ")}. A table sees one: the last, ${names.at(-1)}.`
	const lower = decode(ids, tokenizer).trim().toLowerCase()
	const isOne = tokensOf(lower, tokenizer).length === 1
	return isOne ? `${tokens} In lower case, “${lower}” is one token.` : tokens
}

function followersOf(id, {models, figures: {tokens}}) {
	const nameOf = token => `“${shownToken(token, models.tokenizer)}”`
	const count = tokens.counts[id]
	if (count === 0) return `${nameOf(id)} is not in the text, so the models have learned nothing about it.`
	const most = tokens.times[id].map((times, i) => `${nameOf(tokens.followers[id][i])} (${times})`)
	const often = count === 1 ? "once" : `${whole(count)} times`
	return `In the text ${nameOf(id)} occurs ${often}. Most often it is followed by ${most.join(", ")}.`
}
