// The attention patterns: a picture of each head, and a table of one.
import {$, button, el, fixed, heat, mark, note, points, put, range, roving, shorts, side} from "./draw.js"
import {common, headOf, model, panel, placed, S, set} from "./state.js"

panel(
	"attention",
	() => {
		const {n_head, n_layer} = model()
		if (!n_layer) put("#attnbox", "This model has no layers.")
		S.layer = Math.min(S.layer, n_layer - 1)
		S.head = Math.min(S.head, n_head - 1)
		return n_layer ? common() : null
	},
	({tokens, patterns}) => {
		const {n_head: H, n_layer} = model()
		const T = tokens.length
		const kind = headOf()
		const all = shorts(patterns) // 0 to 65535. Colours are square roots, so that small weights show.
		const row = (n, i) => [...all.subarray((n * T + i) * T, (n * T + i + 1) * T)].map(v => v / 65535)
		const pattern = n => range(T).map(i => row(n, i))
		const cells = range(n_layer * H).map(n => {
			const [layer, head] = [Math.floor(n / H), n % H]
			const choose = () => {
				set({layer, head})
				drawTable()
			}
			const roots = pattern(n).map(weights => weights.map(Math.sqrt))
			const more = {key: `head${layer}.${head}`, title: `block ${layer}, head ${head}`}
			return button(points(roots, 1, kind), choose, more)
		})
		const drawTable = () => {
			const names = tokens.map(t => t.text)
			const at = S.layer * H + S.head
			const M = pattern(at).map((weights, i) => weights.map((v, j) => (j > i ? null : v)))
			const show = v =>
				fixed(v)
					.replace(/^0/, "")
					.replace(/^\.00$/, "·")
			const title = `block ${S.layer}, head ${S.head}`
			const caption = `Attention of ${title}`
			const table = heat(names, names, M, {max: 1, show, shade: Math.sqrt, caption})
			const cut = `The last ${T} tokens. The columns of earlier ones are left out.`
			const below = placed().length > T ? note(cut) : null
			put("#attnbox", side(kind, el("h3", mark(), title), table, below))
			cells.forEach((c, n) => c.setAttribute("aria-pressed", n === at))
		}
		$("#heads").style.gridTemplateColumns = `repeat(${H},minmax(24px,1fr))`
		put("#heads", cells)
		roving($("#heads"), cells, H, S.layer * H + S.head)
		drawTable()
	}
)
