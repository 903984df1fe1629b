// The two gradients of wte.
import {bar, column, grid, highest, line, nameOf, note, put, side} from "./draw.js"
import {el, fixed, whole} from "./elements.js"
import {headOf, model, panel, promptFields, promptTokens} from "./state.js"

panel("gradient", promptFields, gradient => {
	put("#gradbox", side(headOf(), gradientTable(gradient)), note(gradientText(gradient)))
})
function gradientTable({rows, absent}) {
	const most = highest(rows.map(row => [row.embed, row.head]))
	const cells = rows.map(row =>
		line(
			nameOf(row),
			lengthCell(row.embed, most, "fill"),
			lengthCell(row.head, most, "fill.hatched"),
			el("td", row.embed && row.head ? fixed(row.cosine) : "–")
		)
	)
	const other = "other tokens, those with the longest gradients"
	const rule = el("tr.rule", el("th", {scope: "colgroup", colSpan: 4}, other))
	// The last rows are of tokens that the prompt does not have.
	if (absent) cells.splice(-absent, 0, rule)
	const titles = ["row of wte", "as embedding", "as output matrix", "cosine"]
	const top = titles.map(text => column(text))
	return grid("bars2", "Lengths of the two gradients by row of wte", top, cells)
}
// A bar as long as the square root of a gradient's length, but long enough to be seen.
function lengthCell(length, most, kind) {
	const share = length ? Math.max(0.006, Math.sqrt(length / most)) : 0 // 0.006 of the cell is seen
	return el("td", el("span.track", bar(share, kind)), el("span.sr", length.toFixed(4)))
}
function gradientText({loss, reached, read, embed, head, cosine}) {
	const [embedRows, headRows] = reached.map(whole)
	const headPercent = (100 * head ** 2) / (embed ** 2 + head ** 2)
	const isTied = headOf() === "tied"
	const V = whole(model().vocab_size)
	return [
		el("b", `The first gradient reaches ${embedRows} rows of ${V}, the second ${headRows}. `),
		`Their lengths are ${fixed(embed)} and ${fixed(head)}: `,
		`the output matrix has ${headPercent.toFixed(0)} % of the sum of squares. `,
		`The cosine between them is ${fixed(cosine, 3)}; below 0, they partly cancel. `,
		isTied ? "Both change the same rows. " : "The first changes W_E, the second W_U. ",
		promptTokens().length > read ? `The last ${read} tokens. ` : "",
		`Loss ${fixed(loss)} nats per token. Bars show the square root of the length.`
	]
}
