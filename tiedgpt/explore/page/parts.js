// The parts of a logit, and the predictions without some of them.
import {
	$,
	$$,
	bars,
	becomes,
	button,
	column,
	corner,
	el,
	fixed,
	grid,
	highest,
	line,
	note,
	on,
	paint,
	percent,
	plain,
	put,
	range,
	roving,
	side,
	whole
} from "./draw.js"
import {common, headOf, model, panel, S, say, set} from "./state.js"

const partName = name =>
	name.replace(/attn\.(\d+)\.head\.(\d+)/, "head $2 of block $1").replace(/mlp\.(\d+)/, "the MLP of block $1")
panel(
	"parts",
	() => ({...common(), removed: S.removed, token: S.token}),
	({before, after, parts, likeliest, change}) => {
		const listed = likeliest.some(t => t.id === before.id) ? likeliest : [before, ...likeliest]
		const option = t => el("option", {value: t.id, selected: t.id === before.id}, plain(t.text))
		put("#token", listed.map(option))
		$("#putback").disabled = !S.removed.length
		drawParts(parts)
		const removable = Object.entries(parts).filter(([name]) => /head|^mlp\.\d+$/.test(name))
		const [most] = removable.sort(([, a], [, b]) => b - a)
		const said = p =>
			`“${plain(p.text)}” has ${percent(p.probability)}, logit ${fixed(p.logit)}, rank ${whole(p.rank)}`
		put(
			$("#partsout"),
			...[el("b", said(before)), "; the logit is the sum of all numbers in the table."],
			most && ` Most is added by ${partName(most[0])} (${fixed(most[1])}).`,
			after && [`\nWithout ${S.removed.map(partName).join(", ")}: `, el("b", said(after)), "."]
		)
		if (after) say($("#partsout").textContent)
		put("#partsbars", change ? drawChange(change) : [])
	}
)
function drawParts(parts) {
	const {n_head, n_layer} = model()
	const most = highest(Object.values(parts))
	const painted = (cell, name) => paint(cell, parts[name], most)
	const number = name => fixed(parts[name], n_head > 8 ? 1 : 2)
	const toggle = name => {
		const isOut = S.removed.includes(name)
		const removed = isOut ? S.removed.filter(other => other !== name) : [...S.removed, name]
		const go = () => set({removed}, "parts")
		const label = `${partName(name)}: ${fixed(parts[name])}`
		return el("td", painted(button(number(name), go, {key: name, pressed: isOut, label}), name))
	}
	const cell = (name, colSpan = 1) => painted(el("td", {colSpan}, number(name)), name)
	const alone = name => line(name, cell(name, n_head + 3))
	const heads = range(n_head)
	const block = l =>
		line(
			`block ${l}`,
			heads.map(h => toggle(`attn.${l}.head.${h}`)),
			...[cell(`attn.${l}.bias`), toggle(`mlp.${l}`), cell(`mlp.${l}.bias`)]
		)
	const titles = heads.map(h => column(n_head > 8 ? `${h}` : `head\u00a0${h}`))
	const top = [corner(), titles, column("bias"), column("MLP"), column("bias")]
	const rows = [alone("wte"), alone("wpe"), range(n_layer).map(block), alone("ln_f.bias")]
	const table = grid("heat.parts", "What each part adds to the logit", top, rows)
	table.style.minWidth = `${6 + 2.9 * (n_head + 3)}em`
	put("#partsbox", side(headOf(), table))
	if (n_layer) roving(table, $$("button", table), n_head + 1)
}
function drawChange(change) {
	const most = Math.max(...change.flatMap(r => [r.probability, r.drawn]))
	const row = r =>
		el(
			"div.row",
			...[el("span.t", plain(r.text)), bars(r.probability, r.drawn, most)],
			el("span.p", becomes(r.probability, r.drawn))
		)
	const says = note("Outline: with all parts. Bar: without what is removed.")
	return side(headOf(), says, change.map(row))
}
on("#token", "change", e => set({token: +e.target.value}, "parts"))
on("#putback", "click", () => set({removed: []}, "parts"))
