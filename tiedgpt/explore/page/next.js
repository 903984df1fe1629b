// The prompt's tokens, the likeliest next ones, and text that the models write.
import {
	$,
	$$,
	bars,
	becomes,
	button,
	choice,
	el,
	fixed,
	note,
	on,
	percent,
	plain,
	put,
	roving,
	whole
} from "./draw.js"
import {drawFlow} from "./flow.js"
import {
	ask,
	common,
	each,
	facts,
	fail,
	headOf,
	model,
	OF_TEXT,
	ofModel,
	panel,
	placed,
	S,
	say,
	set,
	stoppable
} from "./state.js"

const idsOf = list => list.map(t => t.id)
const isUncut = () => S.temperature === 1 && !S.top_k && S.top_p === 1 // by sampling
const sampled = i => {
	const {temperature, top_k, top_p} = S
	return {...common(i), temperature, top_k: top_k || null, top_p}
}
function setPrompt(ids) {
	$("#prompt").blur()
	set({ids, place: null, token: null}, ...OF_TEXT)
}

panel(
	"next",
	() => {
		const texts = [S.temperature, S.top_k || "off", S.top_p < 1 ? S.top_p : "off"]
		$$("#sliders output").forEach((out, i) => put(out, texts[i]))
		return each(sampled)
	},
	found => {
		facts.next = found
		const [{text, tokens}] = found
		if (S.ids) S.text = text
		if (S.ids && document.activeElement !== $("#prompt")) $("#prompt").value = text
		drawStrip(found[0])
		drawFlow()
		const most = Math.max(...found.flatMap(s => s.rows.flatMap(r => [r.probability, r.drawn])))
		put(
			$("#bars"),
			found.map((s, i) => ofModel(i, headSwitch(i), drawBars(s, i, most)))
		)
		$$("#bars .list").forEach(list => roving(list, $$(".row", list), 1))
		$("#barsnote").hidden = isUncut()
		put("#status", `${tokens.length} of ${Math.min(...facts.models.map(m => m.n_ctx))} tokens`)
		$("#bytes").hidden = !tokens.some(t => /\\x[0-9a-f]{2}/.test(t.text)) // no whole character
		const first = ({rows: [r]}, i) => `${model(i).name}: ${plain(r.text)}, ${percent(r.probability)}`
		say(`Likeliest next token: ${found.map(first).join("; ")}`)
	}
)
function headSwitch(i) {
	const give = head => set({heads: S.heads.with(i, head), copy: 0}, ...OF_TEXT)
	const option = head => [head === "tied" ? "W_E.T" : "W_U", headOf(i) === head, () => give(head)]
	const {heads, name} = model(i)
	const options = ["tied", "untied"].map(option)
	return heads.length > 1 ? el("span.right", choice(`Output matrix of ${name}`, options)) : null
}
function drawBars(s, i, most) {
	const rows = s.rows.map(r => {
		const drawn = isUncut() ? "" : `, drawn ${percent(r.drawn)}`
		const chance = drawn ? becomes(r.probability, r.drawn) : percent(r.probability)
		const track = bars(r.probability, drawn ? r.drawn : r.probability, most)
		const cells = [el("span.t", plain(r.text)), track, el("span.p", chance)]
		return button(cells, () => setPrompt([...idsOf(placed()), r.id]), {
			...{class: r.drawn ? "row" : "row out", key: `bar${i}.${r.id}`},
			title: `token ${r.id}, logit ${fixed(r.logit)}: add it to the text`,
			label: `${plain(r.text)}, ${percent(r.probability)}${drawn}`
		})
	})
	const cut = s.rows.findIndex(r => !r.drawn)
	const dropped = whole(model(i).vocab_size - s.kept)
	const kept = `${whole(s.kept)} kept, ${percent(s.kept_probability)} of the probability; ${dropped} dropped`
	if (cut >= 0) rows.splice(cut, 0, el("div.cut", kept))
	return [
		el("div.list", {role: "group", label: `Likeliest next tokens of ${model(i).name}`}, rows),
		el(
			"p.live",
			button("Draw one", () => drawOne(i), {key: `draw${i}`})
		)
	]
}
function drawStrip({tokens, place}) {
	const cell = (t, i) => {
		const choose = () => set({place: i === tokens.length - 1 ? null : i}, ...OF_TEXT)
		const more = {class: "tok", key: `tok${i}`, pressed: i === place, title: `token ${t.id}`}
		return button(plain(t.text), choose, more)
	}
	const cells = tokens.map(cell)
	put("#strip", cells)
	roving($("#strip"), cells, 1, place)
}

const toWrite = (i, n) => ({...sampled(i), n, seed: S.seed})
async function drawOne(i) {
	try {
		const {value} = await ask("generate", toWrite(i, 1)).next()
		if (value.id == null) return
		S.seed++
		$("#seed").value = S.seed
		setPrompt([...idsOf(placed()), value.id])
	} catch (error) {
		fail(error)
	}
}
stoppable("#write", async signal => {
	const given = placed()
	put("#write", "Stop")
	$("#writtennote").hidden = false
	const texts = each(i => {
		const start = el("span.given", given.map(t => t.text).join(""))
		const page = el("p.page", {tabIndex: 0, role: "group", label: `Text by ${model(i).name}`}, start)
		return {tokens: [], page, note: note("writing …")}
	})
	put(
		$("#written"),
		texts.map((s, i) => ofModel(i, null, s.page, s.note))
	)
	const write = async (s, i) => {
		for await (const word of ask("generate", toWrite(i, 40), signal)) addWord(s, word, given)
	}
	await Promise.all(texts.map(write)).catch(fail)
	for (const s of texts) {
		if (s.note.textContent === "writing …") put(s.note, `${s.tokens.length} tokens; stopped`)
		const cells = $$(".w", s.page)
		if (cells.length) s.page.removeAttribute("tabindex")
		if (cells.length) roving(s.page, cells, 1)
	}
	say(`Wrote ${texts.map(s => s.tokens.length).join(" and ")} tokens`)
	document.body.dataset.written = texts.map(s => s.tokens.length)
})
function addWord(s, word, given) {
	if (word.end) {
		const bits = word.bits_per_token.toFixed(2)
		return put(s.note, `${s.tokens.length} tokens, to the ${word.end}; mean surprisal ${bits} bits`)
	}
	const at = s.tokens.push(word) - 1
	const back = () => setPrompt(idsOf([...given, ...s.tokens.slice(0, at)]))
	const more = {
		...{role: "button", tabIndex: -1, vars: {"--bits": Math.min(9, 1 + 0.7 * word.bits)}},
		title: `${percent(word.probability)}, rank ${whole(word.rank)}. Go back to the text before it.`,
		label: `${plain(word.text)}, ${percent(word.probability)}`,
		onclick: () => String(getSelection()) || back(),
		onkeydown: e => {
			if (e.key !== "Enter" && e.key !== " ") return
			e.preventDefault()
			back()
		}
	}
	s.page.append(el(word.text === "\n" ? "span.w.nl" : "span.w", more, word.text))
}

on("#prompt", "input", e => {
	set({text: e.target.value, ids: null, place: null, token: null}, ...OF_TEXT)
})
on("#sliders", "input", ({target: {id, value}}) => {
	set({[id]: Math.max(0, id === "seed" ? Math.floor(value) : +value)}, "next")
})
