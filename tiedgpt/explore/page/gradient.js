// The two gradients of wte.
import {$, bar, column, el, fixed, grid, highest, line, note, plain, put, side, whole} from "./draw.js"
import {common, headOf, model, panel, placed} from "./state.js"

panel("gradient", common, found => {
	const kind = headOf()
	const most = highest(found.rows.map(r => [r.embed, r.head]))
	const track = (v, more) => {
		const long = v ? Math.max(0.006, Math.sqrt(v / most)) : 0
		return el("td", el("span.track", bar(long, more)), el("span.sr", v.toFixed(4)))
	}
	const row = r =>
		line(
			plain(r.text),
			...[track(r.embed), track(r.head, "fill.hatched")],
			el("td", r.embed && r.head ? fixed(r.cosine) : "–")
		)
	const rows = found.rows.map(row)
	const other = "other tokens, those with the longest gradients"
	const rule = el("tr.rule", el("th", {scope: "colgroup", colSpan: 4}, other))
	if (found.absent) rows.splice(-found.absent, 0, rule)
	const top = ["row of wte", "as embedding", "as output matrix", "cosine"].map(text => column(text))
	const [embed, out] = found.reached.map(whole)
	const share = (100 * found.head ** 2) / (found.embed ** 2 + found.head ** 2)
	const where = kind === "tied" ? "Both change the same rows. " : "The first changes W_E, the second W_U. "
	const V = whole(model().vocab_size)
	const says = [
		el("b", `The first gradient reaches ${embed} rows of ${V}, the second ${out}. `),
		`Their lengths are ${fixed(found.embed)} and ${fixed(found.head)}: `,
		`the output matrix has ${share.toFixed(0)} % of the sum of squares. `,
		`The cosine between them is ${fixed(found.cosine, 3)}; below 0, they partly cancel. `,
		where,
		placed().length > found.read ? `The last ${found.read} tokens. ` : "",
		`Loss ${fixed(found.loss)} nats per token. Bars show the square root of the length.`
	]
	const title = "Lengths of the two gradients by row of wte"
	put($("#gradbox"), side(kind, grid("bars2", title, top, rows)), note(says))
})
