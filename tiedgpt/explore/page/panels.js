// The panels: what each asks for, and how it draws the answer.
import {
	$,
	$$,
	bar,
	button,
	choice,
	code,
	column,
	columns,
	corner,
	el,
	fixed,
	floats,
	grid,
	heat,
	isPart,
	line,
	mark,
	note,
	paint,
	percent,
	plain,
	points,
	put,
	range,
	roving,
	shape,
	short,
	shorts,
	side,
	spell,
	whole
} from "./draw.js";
import {
	answer,
	ask,
	changed,
	common,
	facts,
	fail,
	Gone,
	head,
	nameOf,
	OF_TEXT,
	panel,
	S,
	sampling,
	say,
	startAgain
} from "./state.js";

let tokens = []; // of the whole text
let latest; // the answer with the likeliest tokens
const models = () => facts.models;
const named = i => [mark(), el("span.name", nameOf(i))];
const placed = () => (S.place == null ? tokens : tokens.slice(0, S.place + 1));
const idsOf = list => list.map(t => t.id);
const isUncut = () => S.t === 1 && !S.k && S.p === 1; // by sampling
export const turn = () => (S.copy ? "untied" : head(S.side));

export function setPrompt(ids) {
	Object.assign(S, {ids, place: null, token: null});
	$("#prompt").blur();
	changed("token", ...OF_TEXT);
}
// Turn the switch: to a model with this head, to a model that can have it, or to an untied copy.
function setTurn(to) {
	const all = range(models().length);
	const own = all.find(i => head(i) === to);
	const able = own ?? all.find(i => models()[i].heads.includes(to));
	S.copy = able == null;
	if (able != null) S.side = able;
	if (own == null && able != null) S.heads[able] = to;
	drawFlow();
	changed("switch", ...(own == null && able != null ? OF_TEXT : ["parts", "attention", "gradient"]));
}

// --- the drawing at the top

const WIDE = {
	size: [800, 262],
	boxes: {
		tokens: [0, 32, 96, 84],
		W_E: [130, 32, 136, 84],
		blocks: [300, 32, 126, 84],
		times: [460, 32, 120, 84]
	},
	...{bars: [618, 20, 182], W_U: [450, 204, 140, 56], switch: [418, 146, 204], tied: "M418 163H198V120"},
	...{untied: "M520 180V200", down: "M520 116V142", text: [308, 155, "middle"], gone: [520, 236]},
	arrows: ["M98 74H126", "M268 74H296", "M428 74H456", "M582 74H612"]
};
const NARROW = {
	size: [360, 520],
	boxes: {
		tokens: [60, 0, 240, 34],
		W_E: [95, 58, 170, 60],
		blocks: [95, 142, 170, 52],
		times: [95, 218, 170, 52]
	},
	...{bars: [90, 396, 260], W_U: [110, 344, 140, 46], switch: [78, 292, 204], tied: "M78 309H40V88H91"},
	...{untied: "M180 326V340", down: "M180 270V288", text: [4, 328, "start"], gone: [180, 372]},
	arrows: ["M180 36V54", "M180 120V138", "M180 196V214", "M265 244H326V392"]
};
export function drawFlow() {
	if (!latest) return;
	const at = matchMedia("(max-width:700px)").matches ? NARROW : WIDE;
	const m = models()[S.side];
	const now = turn();
	const text = (x, y, said, more) => shape("text", {x, y, "text-anchor": "middle", ...more}, said);
	const box = ([x, y, w, h], kind, ...lines) => [
		shape("rect", {x, y, width: w, height: h, rx: 6, class: `box ${kind}`}),
		lines.map((said, n) => {
			const middle = y + h / 2 + 5 + 19 * (n - (lines.length - 1) / 2);
			return text(x + w / 2, middle, said, {class: n ? "" : "title"});
		})
	];
	const arrow = (path, kind) =>
		shape("path", {d: path, class: `arrow ${kind}`, "marker-end": `url(#${kind}head)`});
	const last = placed().slice(at === WIDE ? -3 : -4);
	const spelled = last.map(t => plain(t.text).slice(0, 10));
	const numbers = `${whole(m.V * m.D)} numbers`;
	const [tx, ty, anchor] = at.text;
	const [bx, by, bw] = at.bars;
	const rows = latest.sides[S.side].rows.slice(0, 4);
	const most = rows[0].probability;
	const start = bx + 66;
	const bars = rows.map((r, n) => {
		const y = by + 26 * n;
		const share = shape("rect", {x: start, y: y + 7, height: 15, class: "share"});
		share.setAttribute("width", Math.max(1, ((bw - 118) * r.probability) / most));
		const value = text(bx + bw, y + 20, percent(r.probability), {"text-anchor": "end"});
		return [
			text(start - 6, y + 20, plain(r.text).slice(0, 8), {"text-anchor": "end", class: "t"}),
			share,
			value
		];
	});
	const isTied = now === "tied";
	const dangling = {tied: "other", untied: "other", [now]: now};
	const drawing = shape(
		"g",
		{"aria-hidden": "true"},
		box(at.boxes.tokens, "", ...(at === WIDE ? spelled : [spelled.join("  ")])),
		box(at.boxes.W_E, "in", "W_E", `${whole(m.V)} × ${m.D}`, ...(at === WIDE ? ["a row per token"] : [])),
		box(at.boxes.blocks, "", `${m.layers} blocks`, "attention, MLP"),
		box(at.boxes.times, "", "× matrix", "= logits"),
		at.arrows.map(path => arrow(path, "plain")),
		shape("path", {d: at.down, class: "arrow plain"}),
		arrow(at.tied, dangling.tied),
		arrow(at.untied, dangling.untied),
		isTied ? [] : box(at.W_U, S.copy ? "copy" : "out", "W_U", `${m.D} × ${whole(m.V)}`),
		isTied ? shape("rect", {...boxOf(at.W_U), rx: 6, class: "box none"}) : [],
		isTied ? text(...at.gone, "no W_U", {class: "dim"}) : [],
		isTied
			? text(tx, ty, at === WIDE ? "the same matrix" : "the same", {"text-anchor": anchor, class: "tied"})
			: [],
		bars
	);
	const options = [
		["tied", "tied: W_E.T"],
		["untied", "untied: W_U"]
	].map(([kind, said]) => ({text: said, on: kind === now, go: () => setTurn(kind), key: `turn${kind}`}));
	const [x, y, w] = at.switch;
	const control = shape(
		"foreignObject",
		{x, y, width: w, height: 34},
		choice("The switch: the output matrix", options)
	);
	const svg = $("#flow");
	svg.setAttribute("viewBox", `0 0 ${at.size.join(" ")}`);
	svg.setAttribute("class", `${S.copy ? "tied" : now}`);
	put(svg, $("defs", svg), drawing, control);
	put($("#flowsays"), flowSays(m, now, numbers));
	for (const node of $$("#switch .code")) node.dataset.turn = now;
}
const boxOf = ([x, y, width, height]) => ({x, y, width, height});
function flowSays(m, now, numbers) {
	const read = `W_E has a row of ${m.D} numbers for each of ${whole(m.V)} tokens. `;
	if (S.copy)
		return [
			el("b", `${m.name} has no W_U. `),
			"An untied copy of it starts with W_U = W_E.T: the same predictions, until training changes one: ",
			code(`tiedgpt train FILE --from ${m.name} --head untied --out DIR`)
		];
	if (now === "untied")
		return [
			el("b.untied", "Untied: "),
			read,
			`A second matrix, W_U, scores each token: ${numbers} of its own.`
		];
	const useless =
		m.heads[0] === "tied" ? "" : " But this model learned with W_U: its predictions are now useless.";
	return [
		el("b.tied", "Tied: "),
		read,
		`The same W_E, transposed, scores each token: ${numbers} serve twice.`,
		useless
	];
}

// --- next token

panel(
	"next",
	() => {
		$$("#sliders output").forEach((out, i) => {
			out.textContent = [S.t, S.k || "off", S.p < 1 ? S.p : "off"][i];
		});
		return {...common(), ...sampling()};
	},
	found => {
		latest = found;
		tokens = found.tokens;
		if (S.ids) S.text = found.text;
		if (S.ids && document.activeElement !== $("#prompt")) $("#prompt").value = found.text;
		drawStrip(found);
		drawFlow();
		const shown = found.sides.flatMap(s => s.rows.flatMap(r => [r.probability, r.drawn]));
		put(
			$("#bars"),
			found.sides.map((s, i) =>
				side(head(i), el("h3", named(i), headSwitch(i)), bars(s, i, Math.max(...shown)))
			)
		);
		$$("#bars .list").forEach(list => roving(list, $$(".row", list), 1));
		$("#barsnote").hidden = isUncut();
		const most = Math.min(...models().map(m => m.context));
		$("#status").textContent = `${tokens.length} of ${most} tokens`;
		$("#bytes").hidden = !tokens.some(t => isPart(t.text));
		const first = (s, i) => `${nameOf(i)}: ${plain(s.rows[0].text)}, ${percent(s.rows[0].probability)}`;
		say(`Likeliest next token: ${found.sides.map(first).join("; ")}`);
	}
);
function headSwitch(i) {
	const m = models()[i];
	if (m.heads.length < 2) return null;
	const option = (kind, text) => ({
		...{text, on: head(i) === kind, key: `head${i}${text}`},
		go: () => {
			S.heads[i] = kind;
			S.copy = false;
			changed("head", ...OF_TEXT);
		}
	});
	const options = [option("tied", "W_E.T"), option("untied", "W_U")];
	return el("span.right", choice(`Output matrix of ${m.name}`, options));
}
function bars(s, i, most) {
	const before = latest.tokens.slice(0, latest.place + 1);
	const rows = s.rows.map(r => {
		const add = () => setPrompt([...idsOf(before), r.id]);
		const chance = isUncut()
			? percent(r.probability)
			: [percent(r.probability), " → ", el("b", percent(r.drawn))];
		const says = `${plain(r.text)}, ${percent(r.probability)}${isUncut() ? "" : `, drawn ${percent(r.drawn)}`}`;
		const title = `token ${r.id}, logit ${fixed(r.logit)}: add it to the text`;
		const track = el(
			"span.track",
			bar(r.drawn / most),
			isUncut() ? null : bar(r.probability / most, "ghost")
		);
		const kind = r.drawn ? "row" : "row out";
		return button([el("span.t", spell(r.text)), track, el("span.p", chance)], add, {
			...{class: kind, key: `bar${i}.${r.id}`, title, label: says}
		});
	});
	const cut = s.rows.findIndex(r => !r.drawn);
	const dropped = whole(models()[i].V - s.kept);
	const kept = `${whole(s.kept)} kept, ${percent(s.kept_probability)} of the probability; ${dropped} dropped`;
	if (cut >= 0) rows.splice(cut, 0, el("div.cut", kept));
	const more = button("Draw one", () => drawOne(i), {
		key: `draw${i}`,
		title: "draw one token and add it to the text"
	});
	return [
		el("div.list", {role: "group", label: `Likeliest next tokens of ${nameOf(i)}`}, rows),
		el("p.live", more)
	];
}
function drawStrip(found) {
	const last = found.tokens.length - 1;
	const choose = i => () => {
		S.place = i === last ? null : i;
		changed("place", ...OF_TEXT);
	};
	const cells = found.tokens.map((t, i) =>
		button(spell(t.text), choose(i), {
			...{class: "tok", key: `tok${i}`, pressed: i === found.place, title: `token ${t.id}`}
		})
	);
	put($("#strip"), cells);
	roving($("#strip"), cells, 1, found.place);
}
const toWrite = n => ({...common(), ...sampling(), n, seed: S.seed});
async function drawOne(i) {
	try {
		const {value} = await ask("generate", {...toWrite(1), side: i}).next();
		if (value?.id == null) return;
		S.seed++;
		$("#seed").value = S.seed;
		setPrompt([...idsOf(placed()), value.id]);
	} catch (error) {
		fail(error);
	}
}
let writing = null;
export async function write() {
	if (writing) return writing.abort();
	writing = new AbortController();
	const given = placed();
	$("#write").textContent = "Stop";
	$("#writtennote").hidden = false;
	const texts = models().map(m => {
		const start = el("span.given", given.map(t => t.text).join(""));
		const page = el("p.page", {tabIndex: 0, role: "group", label: `Text by ${m.name}`}, start);
		return {tokens: [], page, note: note("writing …")};
	});
	put(
		$("#written"),
		texts.map((s, i) => side(head(i), el("h3", named(i)), s.page, s.note))
	);
	try {
		for await (const word of ask("generate", toWrite(40), writing.signal))
			addWord(texts[word.side], word, given);
	} catch (error) {
		if (error.name !== "AbortError" && !(error instanceof Gone)) fail(error);
	}
	writing = null;
	$("#write").textContent = "Write 40 tokens";
	for (const s of texts) {
		if (s.note.textContent === "writing …") s.note.textContent = `${s.tokens.length} tokens; stopped`;
		const cells = $$(".w", s.page);
		if (cells.length) s.page.removeAttribute("tabindex");
		if (cells.length) roving(s.page, cells, 1);
	}
	say(`Wrote ${texts.map(s => s.tokens.length).join(" and ")} tokens`);
	document.body.dataset.written = texts.map(s => s.tokens.length);
}
function addWord(s, word, given) {
	if (word.end) {
		const bits = word.bits_per_token.toFixed(2);
		s.note.textContent = `${s.tokens.length} tokens, to the ${word.end}; mean surprisal ${bits} bits`;
		return;
	}
	const at = s.tokens.push(word) - 1;
	const back = () => setPrompt(idsOf([...given, ...s.tokens.slice(0, at)]));
	const {page} = s;
	page.append(
		el(
			"span.w",
			{
				...{role: "button", tabIndex: -1, vars: {"--bits": Math.min(9, 1 + 0.7 * word.bits)}},
				title: `${percent(word.probability)}, rank ${whole(word.rank)}. Go back to the text before it.`,
				label: `${plain(word.text)}, ${percent(word.probability)}`,
				onclick: () => String(getSelection()) || back(),
				onkeydown: e => {
					if (e.key !== "Enter" && e.key !== " ") return;
					e.preventDefault();
					back();
				}
			},
			word.text
		)
	);
	if (word.text === "\n") page.lastChild.classList.add("nl");
}

// --- direct path

const PATHS = {
	raw: ["W_E, W_U", "x = W_E[a]"],
	normed: ["with ln_f", "x = ln_f(W_E[a])"],
	mlp0: ["with the first MLP", "x = ln_f(W_E[a] + MLP_0(W_E[a]))"],
	model: ["whole model", "x = the whole model, for the text a"]
};
const measured = {};
panel(
	"path",
	() => ({...common(), path: S.path}),
	async found => {
		const names = found.tokens.map(t => t.text);
		drawPaths();
		const block = (kind, i, title, M, options) => {
			const own = heat(names, names, M, {kind, point: (a, b) => drawPair(found, a, b), ...options});
			const turned = M.map((row, a) => row.map((v, b) => v - M[b][a]));
			const most = Math.max(...M.flat().map(Math.abs));
			const mini = heat(names, names, turned, {kind, caption: "", show: () => "", max: most});
			const verdict = el("div.verdict", {id: `verdict${i}`});
			return side(
				kind,
				el("h3", title),
				own,
				el("div.mini", el("div", {"aria-hidden": "true"}, mini), verdict)
			);
		};
		const boxes = found.sides.map((s, i) =>
			block(head(i), i, named(i), s.A, {
				caption: `${nameOf(i)}: scores of the column's token after the row's`
			})
		);
		const percents = {
			digits: 0,
			caption: "How often the column's token follows the row's in the text, in percent"
		};
		if (found.text)
			boxes.push(block("text", "Text", [mark(), "In the text, %"], found.text.percent, percents));
		else boxes.push(note("To compare with a text, start with ", code("--corpus FILE"), "."));
		put($("#matrices"), boxes);
		drawPair(found, ...commonest(found, names));
		$("#solvedbox").hidden = !facts.corpus;
		$("#corpus").textContent = facts.corpus;
		drawNear(await answer("nearest", common()));
		drawMeasured();
	}
);
// The commonest pair of words in the text, or the last two tokens.
function commonest({text}, names) {
	const pairs = names.flatMap((x, a) => names.map((y, b) => [x, y, a, b]));
	const words = pairs.filter(([x, y, a, b]) => a !== b && /\p{L}/u.test(x) && /\p{L}/u.test(y));
	const often = ([, , a, b]) => text?.percent[a][b] ?? 0;
	const best = words.reduce(
		(one, other) => (often(other) > often(one) ? other : one),
		words[0] ?? pairs.at(-1)
	);
	return text && often(best) ? best.slice(2) : pairs.at(-2).slice(2);
}
function drawPaths() {
	const names = Object.keys(PATHS).filter(name => models().some(m => m.paths.includes(name)));
	const option = name => ({
		...{text: PATHS[name][0], on: name === S.path, key: `path${name}`},
		go: () => {
			S.path = name;
			changed("path", "path");
		}
	});
	put(
		$("#paths"),
		choice("Path from a token to the scores", names.map(option)),
		code(`A[a, b] = x · W_U[:, b],   ${PATHS[S.path][1]}`)
	);
}
// The cell (a, b), its mirror image, and for the raw path the two products that they are.
function drawPair(found, a, b) {
	for (const cell of $$("#matrices td[data-i]")) {
		const [i, j] = [+cell.dataset.i, +cell.dataset.j];
		cell.classList.toggle("on", a === i && b === j);
		cell.classList.toggle("mirror", a === j && b === i && i !== j);
	}
	const [x, y] = [a, b].map(n => plain(found.tokens[n].text));
	const equal = (p, q) => (Math.abs(p - q) < 1e-4 ? "=" : "≠");
	const counts = found.text && [found.text.counts[a][b], found.text.counts[b][a]].map(whole);
	const says = (s, i) =>
		`${nameOf(i)}: ${fixed(s.A[a][b])} ${equal(s.A[a][b], s.A[b][a])} ${fixed(s.A[b][a])}    `;
	put(
		$("#mirror"),
		[
			el("b", `“${x}” then “${y}”`),
			"  against  ",
			el("b", `“${y}” then “${x}”`),
			"\n",
			found.sides.map(says)
		],
		counts && `in the text: ${counts[0]} times, ${counts[1]} times`
	);
	$("#otherpath").hidden = S.path === "raw";
	put($("#product"), S.path === "raw" ? found.sides.map((s, i) => products(s, i, a, b, x, y)) : []);
}
function products(s, i, a, b, x, y) {
	const {D} = models()[i];
	const isTied = head(i) === "tied";
	const row = (matrix, n) => floats(s[matrix]).slice(n * D, (n + 1) * D);
	const way = (from, to, p, q) => {
		const [u, v] = [row("W_E", from), row("W_U", to)];
		const both = u.map((value, n) => value * v[n]);
		const most = values => Math.max(...values.map(Math.abs));
		const label = isTied ? `W_E[${q}]` : `W_U[:, ${q}]`;
		const strip = (title, values) => [el("span", title), points([values], most(values), head(i))];
		const start = [0, 1].map(n => `${fixed(u[n])} × ${fixed(v[n])}`).join(" + ");
		return el(
			"div.strips",
			{role: "img", label: `${p} then ${q}: ${fixed(s.A[from][to])}`},
			[strip(`W_E[${p}]`, u), strip(label, v), strip("product", both)],
			el("p", `${start} + … ${D} products = `, el("b", fixed(s.A[from][to])))
		);
	};
	const why = isTied
		? "The same two rows in the other order. Each product a · b = b · a, so the sums are equal."
		: "Two other rows: W_E[b] and W_U[:, a]. Nothing makes the sums equal.";
	return side(head(i), el("h3", named(i)), way(a, b, x, y), way(b, a, y, x), note(why));
}
async function drawMeasured() {
	const key = models().map((_, i) => head(i));
	const box = $("#repair");
	try {
		const progress = part => put(box, note(`measuring … ${percent(part)}`));
		measured[key] ??= await answer("symmetry", {heads: key}, progress);
	} catch (error) {
		return error instanceof Gone || fail(error, $("#path .warn"));
	}
	const m = measured[key];
	if (String(key) !== String(models().map((_, i) => head(i)))) return;
	m.sides.forEach((s, i) => {
		const {asymmetry, self_prediction: self} = s.paths[S.path] ?? s.paths.raw;
		put(
			$(`#verdict${i}`),
			"A − Aᵀ: ",
			el("b", asymmetry ? `asymmetry ${fixed(asymmetry)}` : "0, symmetric"),
			`${percent(self)} of tokens predict themselves`
		);
	});
	if ($("#verdictText"))
		put(
			$("#verdictText"),
			"A − Aᵀ: ",
			el("b", "not symmetric"),
			m.text == null ? "" : `${percent(m.text)} of frequent tokens mostly follow themselves`
		);
	const rows = Object.keys(PATHS).filter(name => m.sides.some(s => s.paths[name]));
	const cells = (s, i, name) => {
		const p = s.paths[name];
		if (!p) return [el("td"), el("td")];
		const track = el("span.track", bar(Math.min(1, p.asymmetry / 1.5)), el("span.sr", fixed(p.asymmetry)));
		return [el(`td.${head(i)}`, track, el("b", fixed(p.asymmetry))), el("td", percent(p.self_prediction))];
	};
	const top = [
		column("path"),
		m.sides.flatMap((_, i) => [column([nameOf(i), ": asymmetry"]), column("predict themselves")])
	];
	const body = rows.map(name => {
		const row = line(
			PATHS[name][0],
			m.sides.map((s, i) => cells(s, i, name))
		);
		row.classList.toggle("now", name === S.path);
		return row;
	});
	put(
		box,
		grid("sum repair", "How symmetric each path is", top, body),
		m.sides.map((s, i) => verdict(s, i))
	);
}
function verdict({paths, measured: n}, i) {
	if (!paths.mlp0) return null;
	const {raw, mlp0} = paths;
	const from = `from ${fixed(raw.asymmetry)} to ${fixed(mlp0.asymmetry)}`;
	const [most, least] = [raw, mlp0].map(p => percent(p.self_prediction));
	const self = `tokens that predict themselves from ${most} to ${least}`;
	const of = n < models()[i].V ? ` (measured on ${whole(n)} of its tokens, drawn at random)` : "";
	const broken = mlp0.asymmetry > 0.7 && mlp0.self_prediction < raw.self_prediction / 2;
	const verdicts = broken ? "Yes: " : "Only in part: ";
	const says = raw.asymmetry > 0.01 ? "There is no symmetry to repair: " : verdicts;
	return note(
		el("b", `${nameOf(i)}. ${says}`),
		`with the first MLP, the asymmetry goes ${from}, and the ${self}${of}.`
	);
}
function drawNear(found) {
	const one = r => el("li", spell(r.text), el("small", fixed(r.cosine)));
	const list = (name, rows) => [el("h3", mark(), el("span.name", name)), el("ol.near", rows.map(one))];
	put($("#nearto"), spell(found.token.text));
	put(
		$("#near"),
		found.sides.map((s, i) => {
			const isTied = head(i) === "tied";
			const own = list(`${nameOf(i)}: W_E`, s.W_E);
			return side(head(i), own, isTied ? null : list(`${nameOf(i)}: W_U`, s.W_U));
		})
	);
}
const SOLVED = {
	scale: "scale: gone with one factor for all logits",
	head: "head: gone with the best W_U",
	rank: "rank: left with the best W_U"
};
let solving = null;
export async function solve() {
	if (solving) return solving.abort();
	solving = new AbortController();
	const progress = part => put($("#solve"), `Cancel (${percent(part)} done)`);
	progress(0);
	try {
		const found = await answer("solved", {heads: common().heads}, progress, solving.signal);
		const cell = name => s => el("td", s ? fixed(s[name]) : "–");
		const rows = Object.entries(SOLVED).map(([name, text]) => line(text, found.sides.map(cell(name))));
		const top = [column("nats per token"), models().map(m => column(m.name))];
		$("#solvednote").hidden = false;
		put($("#solved"), grid("sum", "What the direct path misses", top, rows));
	} catch (error) {
		const isOver = error.name === "AbortError" || error instanceof Gone;
		put($("#solved"), isOver ? note("Cancelled.") : el("p.note.warn", error.message));
	}
	solving = null;
	put($("#solve"), "Solve for the best W_U");
}

// --- three words

panel(
	"toy",
	() => ({W_E: S.W, P: S.P}),
	found => {
		const {words} = facts.toy;
		const D = S.W[0].length;
		const dims = range(D).map(j => `dim\u00a0${j}`);
		const box = $("#toyin");
		const typing = box.contains(document.activeElement) && document.activeElement.tagName === "INPUT";
		const titles = [`The embedding W_E, ${D} numbers for each word`, "The text: what follows each word"];
		if (!typing) put(box, inputs("W", titles[0], S.W, dims), inputs("P", titles[1], S.P, words));
		$("#dims").textContent = D === 2 ? "Use 3 dimensions" : "Use 2 dimensions";
		const table = (rows, M, kind, caption, more) => heat(rows, words, M, {kind, digits: 2, caption, ...more});
		const way = (name, kind, title, ...formula) => {
			const w = found.ways[name];
			const [a, b] = [w.scores[0][1], w.scores[1][0]];
			const equal = Math.abs(a - b) < 1e-6 ? "=" : "≠";
			const says = note(
				el("b", `${w.kl.toFixed(2)} nats from the text.`),
				` New York ${fixed(a)} ${equal} York New ${fixed(b)}.`
			);
			const own = table(words, w.probabilities, kind, `${title}: predictions`, {max: 1.05, of: "toy"});
			const W_U = name === "untied" && table(dims, w.W_U, kind, "W_U, solved", {of: "wu"});
			return side(kind, el("h3", mark(), title), own, says, W_U || note(formula));
		};
		const between = [
			code("softmax((W_E + MLP(W_E)) W_Eᵀ)"),
			"; the output of its 8 random units is solved for"
		];
		put(
			$("#toyout"),
			way("tied", "tied", "Tied", code("softmax(W_E W_Eᵀ)")),
			way("untied", "untied", "Untied, W_U solved"),
			way("mlp0", "tied", "Tied, with an MLP", ...between)
		);
		const best = found.ways.fitted.kl.toFixed(2);
		const few = `The best W_U of all misses the text by ${best} nats: ${D} columns of W_E are too few. `;
		const go = "Solve for W_E as well, or use 3 dimensions.";
		const fits = "With this W_E, a W_U fits the text, and W_E W_Eᵀ does not.";
		$("#toynote").textContent = found.ways.untied.kl > 0.004 ? few + go : fits;
	}
);
function inputs(name, title, M, titles) {
	const {words} = facts.toy;
	const input = (v, i, j) =>
		el("input", {
			...{type: "number", step: name === "W" ? 0.1 : 0.05, min: name === "W" ? -100 : 0.01, max: 100},
			...{value: +v.toFixed(3), key: name + i + j, label: `${title}: ${words[i]}, ${titles[j]}`},
			oninput: e => {
				if (e.target.value === "") return;
				S[name][i][j] = +e.target.value;
				changed(name, "toy");
			}
		});
	const rows = M.map((row, i) =>
		line(
			words[i],
			row.map((v, j) => el("td", input(v, i, j)))
		)
	);
	return side("text", el("h3", title), grid("heat toy", title, [corner(), columns(titles)], rows));
}
export function changeDimensions() {
	S.W = S.W.map((row, i) => (row.length === 2 ? [...row, [0.6, -0.4, 0.2][i] ?? 0] : row.slice(0, 2)));
	changed("dimensions", "toy");
}
export async function solveEmbedding() {
	const found = await answer("toy", {W_E: S.W, P: S.P, solve_W_E: true}).catch(e => fail(e, $("#toy .warn")));
	if (!found) return;
	S.W = found.W_E.map(row => row.map(v => +v.toFixed(3)));
	changed("solved", "toy");
}
export function resetToy() {
	startAgain("W", "P");
	changed("reset", "toy");
}

// --- logit lens

panel("lens", common, found => {
	const cell = (kind, here, cells) => {
		const [first] = cells;
		const title = cells.map(c => `${plain(c.text)} ${percent(c.probability)}`).join("\n");
		const itself = first.id === here.id ? "↺ " : "";
		const td = el("td", {title}, itself, spell(first.text), el("small", percent(first.probability)));
		return paint(td, kind, 0.06 + first.probability, 1.06);
	};
	const one = (s, i) => {
		const top = [column("after", {class: "corner"}), found.tokens.map(t => column(spell(t.text)))];
		const rows = s.layers.map((row, n) =>
			line(
				n ? `block ${n - 1}` : "embedding",
				row.map((cells, j) => cell(head(i), found.tokens[j], cells))
			)
		);
		const caption = `What each layer of ${nameOf(i)} predicts`;
		const scroll = {tabIndex: 0, role: "group", label: `Logit lens of ${nameOf(i)}`};
		const T = found.tokens.length;
		const itself = row => row.filter((cells, j) => cells[0].id === found.tokens[j].id).length;
		const final = s.layers.at(-1).at(-1)[0].id;
		const at = s.layers.findLastIndex(row => row.at(-1)[0].id !== final) + 1;
		const since = at ? `block ${at - 1}` : "the embedding";
		const counts = `in ${itself(s.layers[0])} of ${T} places, the last block in ${itself(s.layers.at(-1))}`;
		const says = [
			`The embedding predicts the same token again (↺) ${counts}. `,
			`The final prediction after the last token is the likeliest from ${since} on.`
		];
		return side(
			head(i),
			el("h3", named(i)),
			el("div.scroll", scroll, grid("heat lens", caption, top, rows)),
			note(says)
		);
	};
	put($("#lensbox"), found.sides.map(one));
});

// --- parts

function sideSwitch(box) {
	const option = (m, i) => ({
		...{text: m.name, on: i === S.side, key: `side${i}`},
		go: () => {
			Object.assign(S, {side: i, copy: false});
			drawFlow();
			changed("side", "parts", "attention", "gradient");
		}
	});
	put(box, models().length > 1 ? choice("Model", models().map(option)) : []);
	$$("button", box).forEach((b, i) => b.classList.add(head(i)));
}
const partName = name =>
	name
		.replace(/attn\.(\d+)\.head\.(\d+)/, "head $2 of block $1")
		.replace(/mlp\.(\d+)/, "the MLP of block $1");
panel(
	"parts",
	() => ({...common(), side: S.side, removed: S.removed, ...(S.token == null ? {} : {token: S.token})}),
	found => {
		sideSwitch($("#partsby"));
		const {before, after, parts} = found;
		const listed = found.likeliest.some(t => t.id === before.id)
			? found.likeliest
			: [before, ...found.likeliest];
		put(
			$("#token"),
			listed.map(t => el("option", {value: t.id, selected: t.id === before.id}, plain(t.text)))
		);
		$("#putback").disabled = !S.removed.length;
		drawParts(parts);
		const removable = Object.entries(parts).filter(([name]) => /head|^mlp\.\d+$/.test(name));
		const [most, ...others] = removable.sort(([, a], [, b]) => b - a);
		const said = p =>
			`“${plain(p.text)}” has ${percent(p.probability)}, logit ${fixed(p.logit)}, rank ${whole(p.rank)}`;
		const adds = ([name, v]) => `${partName(name)} (${fixed(v)})`;
		const extremes = others.length ? ` Most is added by ${adds(most)}, least by ${adds(others.at(-1))}.` : "";
		const without = after && [
			"\nWithout ",
			S.removed.map(partName).join(", "),
			": ",
			el("b", said(after)),
			"."
		];
		put(
			$("#partsout"),
			el("b", said(before)),
			`; the logit is the sum of all numbers in the table.${extremes}`,
			without
		);
		if (after) say($("#partsout").textContent);
		drawChange(found.change);
	}
);
function drawParts(parts) {
	const m = models()[S.side];
	const kind = head(S.side);
	const most = Math.max(...Object.values(parts).map(Math.abs));
	const digits = m.n_head > 8 ? 1 : 2;
	const toggle = name => {
		const out = S.removed.includes(name);
		const go = () => {
			S.removed = out ? S.removed.filter(other => other !== name) : [...S.removed, name];
			changed("removed", "parts");
		};
		const label = `${partName(name)}: ${fixed(parts[name])}`;
		const title = `${out ? "put back" : "remove"} ${partName(name)}`;
		return paint(
			button(fixed(parts[name], digits), go, {key: name, pressed: out, label, title}),
			kind,
			parts[name],
			most
		);
	};
	const cell = (name, wide = 1) =>
		paint(el("td", {colSpan: wide}, fixed(parts[name], digits)), kind, parts[name], most);
	const alone = name => line(name, cell(name, m.n_head + 3));
	const heads = range(m.n_head);
	const block = l =>
		line(
			`block ${l}`,
			heads.map(h => el("td", toggle(`attn.${l}.head.${h}`))),
			...[cell(`attn.${l}.bias`), el("td", toggle(`mlp.${l}`)), cell(`mlp.${l}.bias`)]
		);
	const top = [
		corner(),
		heads.map(h => column(m.n_head > 8 ? `${h}` : `head\u00a0${h}`)),
		columns(["bias", "MLP", "bias"])
	];
	const rows = [alone("wte"), alone("wpe"), range(m.layers).map(block), alone("ln_f.bias")].flat();
	const width = {"min-width": `${6 + 2.9 * (m.n_head + 3)}em`};
	const table = grid("heat parts", "What each part adds to the logit", top, rows, {vars: width});
	put($("#partsbox"), side(kind, table));
	if (m.layers) roving(table, $$("button", table), m.n_head + 1);
}
function drawChange(change) {
	if (!change)
		return put(
			$("#partsbars"),
			note("Choose a head or an MLP to remove it: bars then show the prediction without it.")
		);
	const most = Math.max(...change.flatMap(r => [r.probability, r.drawn]));
	const row = r =>
		el(
			"div.row",
			el("span.t", spell(r.text)),
			el("span.track", bar(r.drawn / most), bar(r.probability / most, "ghost")),
			el("span.p", percent(r.probability), " → ", el("b", percent(r.drawn)))
		);
	put(
		$("#partsbars"),
		side(head(S.side), note("Outline: with all parts. Bar: without what is removed."), change.map(row))
	);
}

// --- attention

panel(
	"attention",
	() => {
		const m = models()[S.side];
		if (!m.layers) put($("#attnbox"), "This model has no layers.");
		S.layer = Math.min(S.layer, m.layers - 1);
		S.head = Math.min(S.head, m.n_head - 1);
		return m.layers ? {...common(), side: S.side} : null;
	},
	found => {
		sideSwitch($("#attnby"));
		const {layers, n_head: H} = models()[S.side];
		const T = found.tokens.length;
		const kind = head(S.side);
		const all = shorts(found.patterns); // 0 to 65535. Colours are square roots, so that small weights show.
		const pattern = n =>
			range(T).map(i => [...all.subarray((n * T + i) * T, (n * T + i + 1) * T)].map(v => v / 65535));
		const cells = range(layers * H).map(n => {
			const [layer, h] = [Math.floor(n / H), n % H];
			const choose = () => {
				Object.assign(S, {layer, head: h});
				changed("head");
				drawTable();
			};
			const picture = points(
				pattern(n).map(row => row.map(Math.sqrt)),
				1,
				kind
			);
			return button(picture, choose, {key: `head${layer}.${h}`, title: `block ${layer}, head ${h}`});
		});
		const drawTable = () => {
			const names = found.tokens.map(t => t.text);
			const M = pattern(S.layer * H + S.head).map((row, i) => row.map((v, j) => (j > i ? null : v)));
			const show = v =>
				fixed(v)
					.replace(/^0/, "")
					.replace(/^\.00$/, "·");
			const caption = `Attention of block ${S.layer}, head ${S.head}`;
			const table = heat(names, names, M, {kind, max: 1, show, shade: Math.sqrt, caption});
			const cut = note(`The last ${T} tokens. The columns of earlier ones are left out.`);
			const title = el("h3", mark(), `block ${S.layer}, head ${S.head}`);
			put($("#attnbox"), side(kind, title, table, placed().length > T ? cut : null));
			cells.forEach((c, n) => c.setAttribute("aria-pressed", n === S.layer * H + S.head));
		};
		$("#heads").style.gridTemplateColumns = `repeat(${H},minmax(24px,1fr))`;
		put($("#heads"), cells);
		roving($("#heads"), cells, H, S.layer * H + S.head);
		drawTable();
	}
);

// --- gradient

panel(
	"gradient",
	() => ({...common(), side: S.side}),
	found => {
		sideSwitch($("#gradby"));
		const kind = head(S.side);
		const most = Math.max(...found.rows.map(r => Math.max(r.embed, r.head)));
		const track = (v, more) => {
			const long = v ? Math.max(0.006, Math.sqrt(v / most)) : 0;
			return el("td", el("span.track", {title: v.toFixed(4)}, bar(long, more)), el("span.sr", v.toFixed(4)));
		};
		const row = r =>
			line(
				spell(r.text),
				track(r.embed, "fill"),
				track(r.head, "fill.hatched"),
				el("td", r.embed && r.head ? fixed(r.cosine) : "–")
			);
		const split = found.rows.length - found.absent;
		const other = "other tokens, those with the longest gradients";
		const rule = el("tr.rule", el("th", {scope: "colgroup", colSpan: 4}, other));
		const rows = [
			...found.rows.slice(0, split).map(row),
			...(found.absent ? [rule] : []),
			...found.rows.slice(split).map(row)
		];
		const top = columns(["row of wte", "as embedding", "as output matrix", "cosine"]);
		const [embed, out] = found.reached.map(whole);
		const share = (100 * found.head ** 2) / (found.embed ** 2 + found.head ** 2);
		const cut = placed().length > found.read ? `The last ${found.read} tokens. ` : "";
		const both =
			kind === "tied"
				? "With W_E.T, both are added to the same row."
				: "With W_U, the first changes W_E and the second W_U.";
		const says = [
			el("b", `The first gradient reaches ${embed} rows of ${whole(found.V)}, the second ${out}. `),
			`Their lengths are ${fixed(found.embed)} and ${fixed(found.head)}: `,
			`the output matrix has ${share.toFixed(0)} % of the sum of squares. `,
			`The cosine between them is ${fixed(found.cosine, 3)}; below 0, they partly cancel. `,
			`${both} ${cut}Loss ${fixed(found.loss)} nats per token. Bars show the square root of the length.`
		];
		const title = "Lengths of the two gradients by row of wte";
		put($("#gradbox"), side(kind, grid("bars2", title, top, rows)), note(says));
	}
);

// --- cost

panel(
	"cost",
	() => ({vocab: S.vocab, dim: S.dim, total: S.total}),
	found => {
		const {tied, untied, saved_percent: saved} = found;
		["vocab", "dim", "total"].forEach(name => {
			$(`#o${name}`).textContent = name === "total" ? short(tied) : whole(S[name]);
		});
		const matrix = untied - tied;
		const of = `${saved.toFixed(1)} % of the untied model`;
		const piece = (n, kind, text) =>
			el("div", {class: kind, vars: {flex: `${n / untied} 0 0`}}, n / untied < 0.08 ? "" : text);
		const label = `layers ${short(tied - matrix)}, W_E ${short(matrix)}, W_U ${short(matrix)}`;
		const pieces = [
			piece(tied - matrix, "rest", "layers"),
			piece(matrix, "e", "W_E"),
			piece(matrix, "u", "")
		];
		const row = m =>
			line(
				m.name,
				[whole(m.tied), whole(m.untied), whole(m.untied - m.tied), `${m.saved_percent.toFixed(1)} %`].map(t =>
					el("td", t)
				)
			);
		const top = columns(["model", "tied", "untied", "tying saves", "of the untied"]);
		put(
			$("#costbox"),
			el("div.stack", {role: "img", label}, pieces),
			el("p.note.first", "grey: layers · solid: W_E · hatched: W_U, only in an untied model"),
			el("p.readout", `Untied ${short(untied)}, tied ${short(tied)}: tying saves ${short(matrix)}, ${of}.`),
			el(
				"div.scroll",
				{tabIndex: 0, role: "group", label: "Parameters"},
				grid("sum", "Parameters of GPT-2 with either head", top, found.models.map(row))
			)
		);
	}
);
